//! Due times of all leases, behind a single timer.
//!
//! Times are rounded up to a tick, so that leases due at about the same time are handled together. Setting a new time
//! does not search for the old entry: outdated entries are skipped when their tick is due.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Short compared with the shortest response timeout (300 ms), long enough to form batches: waking up is most of the
/// cost of a keepalive.
const TICK: Duration = Duration::from_millis(50);
/// Latest tick, years away. Later times are rounded down to it.
const LAST_TICK: u64 = u32::MAX as u64;
/// Tick of a lease without a due time.
const NEVER: u64 = u64::MAX;

/// Due times by slab index.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    origin: Instant,
    /// Indexes by due tick. May contain outdated entries.
    by_tick: BTreeMap<u64, Vec<u32>>,
    /// Due tick of each index.
    due: Vec<u64>,
    /// Empty vectors for reuse in `by_tick`.
    spare: Vec<Vec<u32>>,
}

impl TimerWheel {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            by_tick: BTreeMap::new(),
            due: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Sets the due time of an index, replacing the previous one.
    pub(crate) fn set(&mut self, index: u32, at: Instant) {
        self.set_tick(index, self.tick(at));
    }

    /// Sets the due time of an index to `at` or up to `slack` later, so that it is due together with others.
    pub(crate) fn set_with_slack(&mut self, index: u32, at: Instant, slack: Duration) {
        let slack = u64::try_from(slack.as_millis() / TICK.as_millis()).unwrap_or(1);
        let tick = self.tick(at).next_multiple_of(slack.max(1));
        self.set_tick(index, tick.min(LAST_TICK));
    }

    fn set_tick(&mut self, index: u32, tick: u64) {
        let position = index as usize;
        if position >= self.due.len() {
            self.due.resize(position + 1, NEVER);
        }
        if std::mem::replace(&mut self.due[position], tick) != tick {
            let spare = &mut self.spare;
            let entry = self.by_tick.entry(tick);
            entry
                .or_insert_with(|| spare.pop().unwrap_or_default())
                .push(index);
        }
    }

    /// Removes the due time of an index.
    pub(crate) fn clear(&mut self, index: u32) {
        if let Some(due) = self.due.get_mut(index as usize) {
            *due = NEVER;
        }
    }

    /// Returns the time of the next entry, which may be outdated: too early, never too late.
    pub(crate) fn next(&self) -> Option<Instant> {
        let (tick, _) = self.by_tick.first_key_value()?;
        Some(self.time(*tick))
    }

    /// Removes and returns every index that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<u32> {
        let mut indexes = Vec::new();
        while let Some((&tick, _)) = self.by_tick.first_key_value() {
            if self.time(tick) > now {
                break;
            }
            let Some((_, mut entry)) = self.by_tick.pop_first() else {
                break;
            };
            for index in entry.drain(..) {
                if let Some(due) = self.due.get_mut(index as usize)
                    && *due == tick
                {
                    *due = NEVER;
                    indexes.push(index);
                }
            }
            self.spare.push(entry);
        }
        indexes
    }

    fn time(&self, tick: u64) -> Instant {
        self.origin + TICK * u32::try_from(tick).unwrap_or(u32::MAX)
    }

    fn tick(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        let ticks = since.div_ceil(TICK.as_nanos());
        u64::try_from(ticks).unwrap_or(LAST_TICK).min(LAST_TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn index_is_never_due_early() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(1, start + ms(151));
        wheel.set(2, start + ms(100));
        assert_eq!(wheel.next(), Some(start + ms(100)));
        assert_eq!(wheel.take_due(start + ms(99)), [0_u32; 0]);
        assert_eq!(wheel.take_due(start + ms(101)), [2]);
        assert_eq!(wheel.take_due(start + ms(199)), [0_u32; 0]);
        assert_eq!(wheel.take_due(start + ms(200)), [1]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn new_time_replaces_old_time() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(1, start + ms(40));
        wheel.set(1, start + ms(400));
        assert_eq!(wheel.take_due(start + ms(300)), [0_u32; 0]);
        wheel.set(1, start + ms(350));
        assert_eq!(wheel.take_due(start + ms(350)), [1]);
        assert_eq!(wheel.take_due(start + ms(500)), [0_u32; 0], "due once");
    }

    #[test]
    fn repeated_time_is_due_once() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        for at in [100, 300, 100, 100] {
            wheel.set(1, start + ms(at));
        }
        assert_eq!(wheel.take_due(start + ms(400)), [1]);
    }

    #[test]
    fn cleared_index_is_not_due() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(1, start + ms(20));
        wheel.clear(1);
        assert_eq!(wheel.take_due(start + ms(100)), [0_u32; 0]);
    }

    #[test]
    fn times_within_slack_are_due_together() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        for (index, at) in [(1, 610), (2, 700), (3, 800), (4, 801)] {
            wheel.set_with_slack(index, start + ms(at), ms(210));
        }
        assert_eq!(wheel.take_due(start + ms(799)), [0_u32; 0]);
        assert_eq!(wheel.take_due(start + ms(800)), [1, 2, 3]);
        assert_eq!(wheel.take_due(start + ms(1000)), [4]);
        wheel.set_with_slack(1, start + ms(1001), ms(49));
        assert_eq!(
            wheel.take_due(start + ms(1050)),
            [1],
            "slack is at least one tick"
        );
    }

    #[test]
    fn distant_time_does_not_overflow() {
        let start = Instant::now();
        let mut wheel = TimerWheel::new(start);
        wheel.set(1, start + Duration::from_secs(946_080_000));
        assert!(wheel.next().unwrap() > start + Duration::from_secs(80_000_000));
    }
}
