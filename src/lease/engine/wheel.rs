//! When each lease is to be woken: one timer for all of them.
//!
//! Times are rounded up to a tick, so that leases due at about the same time are served together. Setting a lease
//! again does not look for its old place: what is found there later is out of date and skipped.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Short against the shortest wait for an answer (300 ms), long enough to make batches: most of what a keepalive costs
/// is waking up for it.
const TICK: Duration = Duration::from_millis(50);
/// Years away: who would be woken later is woken then and waits on.
const LAST: u64 = u32::MAX as u64;
/// Not woken.
const NEVER: u64 = u64::MAX;

/// Due times of leases, by the index of their place.
#[derive(Debug)]
pub(crate) struct Wheel {
    origin: Instant,
    slots: BTreeMap<u64, Vec<u32>>,
    /// The tick of each.
    due: Vec<u64>,
    /// Emptied slots, to be filled again.
    spare: Vec<Vec<u32>>,
}

impl Wheel {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            slots: BTreeMap::new(),
            due: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Wakes a lease at that time, and at no other.
    pub(crate) fn set(&mut self, lease: u32, at: Instant) {
        self.put(lease, self.tick(at));
    }

    /// Wakes a lease at that time or up to `grain` later, together with others that can wait as well.
    pub(crate) fn set_about(&mut self, lease: u32, at: Instant, grain: Duration) {
        let grain = u64::try_from(grain.as_millis() / TICK.as_millis()).unwrap_or(1);
        let tick = self.tick(at).next_multiple_of(grain.max(1));
        self.put(lease, tick.min(LAST));
    }

    fn put(&mut self, lease: u32, tick: u64) {
        let place = lease as usize;
        if place >= self.due.len() {
            self.due.resize(place + 1, NEVER);
        }
        if std::mem::replace(&mut self.due[place], tick) != tick {
            let spare = &mut self.spare;
            let slot = self.slots.entry(tick);
            slot.or_insert_with(|| spare.pop().unwrap_or_default())
                .push(lease);
        }
    }

    /// Wakes a lease no more.
    pub(crate) fn clear(&mut self, lease: u32) {
        if let Some(due) = self.due.get_mut(lease as usize) {
            *due = NEVER;
        }
    }

    /// When there is something to do next. May be too early, never too late.
    pub(crate) fn next(&self) -> Option<Instant> {
        let (tick, _) = self.slots.first_key_value()?;
        Some(self.time(*tick))
    }

    /// Takes the leases whose time has come.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<u32> {
        let mut leases = Vec::new();
        while let Some((&tick, _)) = self.slots.first_key_value() {
            if self.time(tick) > now {
                break;
            }
            let Some((_, mut slot)) = self.slots.pop_first() else {
                break;
            };
            for lease in slot.drain(..) {
                if let Some(due) = self.due.get_mut(lease as usize)
                    && *due == tick
                {
                    *due = NEVER;
                    leases.push(lease);
                }
            }
            self.spare.push(slot);
        }
        leases
    }

    fn time(&self, tick: u64) -> Instant {
        self.origin + TICK * u32::try_from(tick).unwrap_or(u32::MAX)
    }

    fn tick(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin).as_nanos();
        let ticks = since.div_ceil(TICK.as_nanos());
        u64::try_from(ticks).unwrap_or(LAST).min(LAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn leases_are_woken_at_their_time_and_never_before() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start);
        wheel.set(1, start + ms(151));
        wheel.set(2, start + ms(100));
        assert_eq!(wheel.next(), Some(start + ms(100)));
        assert_eq!(wheel.expired(start + ms(99)), [0_u32; 0]);
        assert_eq!(wheel.expired(start + ms(101)), [2]);
        assert_eq!(wheel.expired(start + ms(199)), [0_u32; 0]);
        assert_eq!(wheel.expired(start + ms(200)), [1]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn only_the_last_time_counts() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start);
        wheel.set(1, start + ms(40));
        wheel.set(1, start + ms(400));
        assert_eq!(wheel.expired(start + ms(300)), [0_u32; 0]);
        wheel.set(1, start + ms(350));
        assert_eq!(wheel.expired(start + ms(350)), [1]);
        assert_eq!(wheel.expired(start + ms(500)), [0_u32; 0], "woken once");
    }

    #[test]
    fn a_lease_is_woken_once_however_often_the_same_time_was_said() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start);
        for at in [100, 300, 100, 100] {
            wheel.set(1, start + ms(at));
        }
        assert_eq!(wheel.expired(start + ms(400)), [1]);
    }

    #[test]
    fn a_cleared_lease_is_not_woken() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start);
        wheel.set(1, start + ms(20));
        wheel.clear(1);
        assert_eq!(wheel.expired(start + ms(100)), [0_u32; 0]);
    }

    #[test]
    fn leases_that_can_wait_are_woken_together_in_their_time() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start);
        for (lease, at) in [(1, 610), (2, 700), (3, 800), (4, 801)] {
            wheel.set_about(lease, start + ms(at), ms(210));
        }
        assert_eq!(wheel.expired(start + ms(799)), [0_u32; 0]);
        assert_eq!(wheel.expired(start + ms(800)), [1, 2, 3]);
        assert_eq!(wheel.expired(start + ms(1000)), [4]);
        wheel.set_about(1, start + ms(1001), ms(49));
        assert_eq!(wheel.expired(start + ms(1050)), [1], "no less than a tick");
    }

    #[test]
    fn a_time_far_away_fits() {
        let start = Instant::now();
        let mut wheel = Wheel::new(start);
        wheel.set(1, start + Duration::from_secs(946_080_000));
        assert!(wheel.next().unwrap() > start + Duration::from_secs(80_000_000));
    }
}
