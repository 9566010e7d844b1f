//! When to probe a member next. Time and randomness are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::{Verdict, probe_budget::ProbeBudget};
use crate::runtime::backoff::Backoff;

/// Shortest time between two probes.
const MIN_SPACING: Duration = Duration::from_millis(100);
const JITTER: f64 = 0.2;
/// Delays while a member is suspected or not fine. Short, because an election lasts about a second.
const FREQUENT: Backoff = Backoff::new(Duration::from_millis(150), Duration::from_millis(200))
    .factor(1.5)
    .jitter(JITTER);
/// Number of equal verdicts in a row after which [`RELAXED`] replaces [`FREQUENT`].
const REPEATS_BEFORE_RELAXED: u32 = 15;
/// Delays while a member stays suspected or not fine.
const RELAXED: Backoff = Backoff::new(Duration::from_millis(300), Duration::from_secs(1))
    .factor(1.5)
    .jitter(JITTER);
/// Delay between routine probes of a member that is fine.
const ROUTINE_DELAY: Duration = Duration::from_secs(3);
const ROUTINE: Backoff = Backoff::new(ROUTINE_DELAY, ROUTINE_DELAY).jitter(JITTER);

/// When to probe one member.
#[derive(Debug)]
pub(crate) struct ProbeSchedule {
    budget: ProbeBudget,
    /// Number of delays since the schedule was last reset.
    delays: u32,
    last_verdict: Option<Verdict>,
    /// Number of times in a row that `last_verdict` was repeated.
    repeats: u32,
    last_probe: Option<Instant>,
}

impl Default for ProbeSchedule {
    fn default() -> Self {
        Self {
            budget: ProbeBudget::of_member(),
            delays: 0,
            last_verdict: None,
            repeats: 0,
            last_probe: None,
        }
    }
}

impl ProbeSchedule {
    /// Records that a probe was sent.
    pub(crate) fn probe_sent(&mut self, now: Instant) {
        self.budget.take(now);
        self.last_probe = Some(now);
    }

    /// Returns how long a probe has to wait, so that many slow calls together cause few probes.
    pub(crate) fn spacing(&mut self, now: Instant) -> Duration {
        let spacing = self.last_probe.map_or(Duration::ZERO, |last| {
            (last + MIN_SPACING).saturating_duration_since(now)
        });
        spacing.max(self.budget.delay(now))
    }

    /// Returns whether a probe was sent within the last `time`.
    pub(crate) fn probed_within(&self, time: Duration, now: Instant) -> bool {
        self.last_probe.is_some_and(|last| now < last + time)
    }

    /// Starts again with short delays.
    pub(crate) fn reset(&mut self) {
        (self.delays, self.repeats) = (0, 0);
    }

    /// Returns the delay before the next probe. `random` lies between 0 and 1.
    pub(crate) fn next_delay(
        &mut self,
        verdict: Verdict,
        suspected: bool,
        random: f64,
    ) -> Duration {
        self.repeats = match self.last_verdict.replace(verdict) {
            Some(last) if last == verdict => self.repeats.saturating_add(1),
            Some(_) | None => 0,
        };
        if verdict.is_fine() && !suspected {
            self.reset();
            return ROUTINE.delay(0, random);
        }
        let delays = self.delays;
        self.delays = delays.saturating_add(1);
        match self.repeats.checked_sub(REPEATS_BEFORE_RELAXED) {
            None => FREQUENT.delay(delays, random),
            Some(relaxed) => RELAXED.delay(relaxed, random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_FREQUENT: Duration = ms(200);
    const LONGEST_RELAXED: Duration = Duration::from_secs(1);

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn suspected_member_is_probed_less_often_if_nothing_changes() {
        let mut schedule = ProbeSchedule::default();
        let mut next = || schedule.next_delay(Verdict::NoLeader, false, 0.5);
        let first: Vec<_> = (0..3).map(|_| next()).collect();
        assert_eq!(first, [ms(150), ms(200), ms(200)]);
        let total: Duration = first.into_iter().chain((3..15).map(|_| next())).sum();
        assert!(
            total > ms(2000),
            "probes are frequent during an election: {total:?}"
        );
        let last = (0..20).map(|_| next()).last();
        assert_eq!(last, Some(LONGEST_RELAXED));
        assert_eq!(
            schedule.next_delay(Verdict::Fine, true, 0.5),
            LONGEST_FREQUENT,
            "a different verdict shortens the delay"
        );
    }

    #[test]
    fn delays_grow_after_fifteen_repeats() {
        let mut schedule = ProbeSchedule::default();
        let mut next = || schedule.next_delay(Verdict::NoLeader, false, 0.5);
        let early = (0..15).map(|_| next()).last();
        assert_eq!(early, Some(LONGEST_FREQUENT));
        let later: Vec<_> = (0..5).map(|_| next()).collect();
        assert_eq!(later, [ms(300), ms(450), ms(675), ms(1000), ms(1000)]);
    }

    #[test]
    fn healthy_member_is_probed_rarely() {
        let mut schedule = ProbeSchedule::default();
        let mut next = |suspected| schedule.next_delay(Verdict::Fine, suspected, 0.5);
        assert_eq!(next(false), ROUTINE_DELAY);
        assert_eq!(next(true), ms(150));
        assert_eq!(next(false), ROUTINE_DELAY);
    }

    #[test]
    fn long_slow_call_causes_few_probes() {
        let mut schedule = ProbeSchedule::default();
        let delays = (0..100).map(|_| schedule.next_delay(Verdict::Fine, true, 0.5));
        assert!(delays.sum::<Duration>() > Duration::from_secs(60));
        schedule.reset();
        assert_eq!(
            schedule.next_delay(Verdict::Fine, true, 0.5),
            ms(150),
            "a new suspicion shortens the delay"
        );
    }

    #[test]
    fn probes_keep_their_spacing() {
        let now = Instant::now();
        let mut schedule = ProbeSchedule::default();
        assert_eq!(schedule.spacing(now), Duration::ZERO);
        schedule.probe_sent(now);
        assert_eq!(schedule.spacing(now + ms(30)), ms(70));
        assert_eq!(schedule.spacing(now + ms(100)), Duration::ZERO);
        assert!(schedule.probed_within(ms(200), now + ms(199)));
        assert!(!schedule.probed_within(ms(200), now + ms(200)));
    }

    #[test]
    fn resets_do_not_exceed_the_budget() {
        let mut now = Instant::now();
        let end = now + Duration::from_secs(30);
        let mut schedule = ProbeSchedule::default();
        let mut probes = 0;
        while now < end {
            schedule.reset();
            now += schedule.spacing(now).max(ms(1));
            schedule.probe_sent(now);
            probes += 1;
        }
        assert!(probes <= 60, "{probes} probes in 30 s");
    }
}
