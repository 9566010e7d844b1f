//! How often a member is asked how it is. Pure: times are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::Verdict;

/// Between two questions to a member under suspicion, growing from the first to the second.
const FIRST: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_millis(200);
/// After that many answers that say the same, it is no news any more: the pauses grow up to the next.
const NO_NEWS: u32 = 15;
const LATER: Duration = Duration::from_secs(1);
/// Between two looks at a member that carries streams or is watched for its leader.
const SLOWLY: Duration = Duration::from_secs(3);

/// The pauses between the questions to one member.
#[derive(Debug)]
pub(crate) struct ProbePace {
    pause: Duration,
    said: Option<Verdict>,
    again: u32,
    asked: Option<Instant>,
}

impl Default for ProbePace {
    fn default() -> Self {
        Self {
            pause: FIRST,
            said: None,
            again: 0,
            asked: None,
        }
    }
}

impl ProbePace {
    /// A question goes out.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// How long a new suspicion has to wait for its question: many slow calls are one reason to ask, not many.
    pub(crate) fn spacing(&self, now: Instant) -> Duration {
        self.asked.map_or(Duration::ZERO, |asked| {
            (asked + FIRST).saturating_duration_since(now)
        })
    }

    /// There is a new reason to ask.
    pub(crate) fn hurry(&mut self) {
        (self.pause, self.again) = (FIRST, 0);
    }

    /// The pause after an answer.
    pub(crate) fn after(&mut self, verdict: Verdict, suspected: bool) -> Duration {
        self.again = match self.said.replace(verdict) {
            Some(before) if before == verdict => self.again.saturating_add(1),
            Some(_) | None => 0,
        };
        if verdict.is_fine() && !suspected {
            self.hurry();
            return SLOWLY;
        }
        let longest = if self.again < NO_NEWS { SOON } else { LATER };
        self.pause = (self.pause * 3 / 2).min(longest);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_member_under_suspicion_is_asked_often_and_less_often_when_nothing_changes() {
        let mut pace = ProbePace::default();
        let mut pauses = || pace.after(Verdict::NoLeader, false);
        let first: Vec<_> = (0..3).map(|_| pauses()).collect();
        assert_eq!(first, [ms(150), ms(200), ms(200)]);
        let total: Duration = first.into_iter().chain((3..15).map(|_| pauses())).sum();
        assert!(
            total > ms(2000),
            "an election is watched closely: {total:?}"
        );
        let last = (0..20).map(|_| pauses()).last();
        assert_eq!(last, Some(LATER));
        assert_eq!(
            pace.after(Verdict::Fine, true),
            SOON,
            "a change is news again"
        );
    }

    #[test]
    fn a_member_that_is_fine_is_left_alone() {
        let mut pace = ProbePace::default();
        assert_eq!(pace.after(Verdict::Fine, false), SLOWLY);
        assert_eq!(pace.after(Verdict::Fine, true), ms(150));
        assert_eq!(pace.after(Verdict::Fine, false), SLOWLY);
    }

    #[test]
    fn a_call_that_waits_for_minutes_is_no_reason_to_ask_five_times_a_second() {
        let mut pace = ProbePace::default();
        let pauses = (0..100).map(|_| pace.after(Verdict::Fine, true));
        assert!(pauses.sum::<Duration>() > Duration::from_secs(60));
        pace.hurry();
        assert_eq!(pace.after(Verdict::Fine, true), ms(150), "a new one is");
    }

    #[test]
    fn questions_keep_their_distance() {
        let now = Instant::now();
        let mut pace = ProbePace::default();
        assert_eq!(pace.spacing(now), Duration::ZERO);
        pace.asked(now);
        assert_eq!(pace.spacing(now + ms(30)), ms(70));
        assert_eq!(pace.spacing(now + ms(100)), Duration::ZERO);
    }
}
