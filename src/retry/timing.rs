//! How long a call waits before its next attempt: not at all while there are members left to ask, then a little.

use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(25);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const JITTER: f64 = 0.1;

/// The waits of one call.
///
/// A *round* asks members without pause until a quorum of them (n/2 + 1) has failed: then nobody could have served the
/// call, and asking the rest would only add load. Then it waits 25 ms ± 10 %, doubled each round up to 1 s, and a new
/// round begins.
#[derive(Clone, Debug)]
pub(crate) struct QuorumBackoff {
    quorum: usize,
    failed: Vec<u64>,
    rounds: u32,
}

impl QuorumBackoff {
    pub(crate) fn new(members: usize) -> Self {
        Self {
            quorum: quorum_of(members),
            failed: Vec::new(),
            rounds: 0,
        }
    }

    /// The endpoints changed while the call was under way.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.quorum = quorum_of(members);
    }

    /// The wait after `member` failed; `None` says there was no member to ask. `random` gives numbers in 0..1.
    pub(crate) fn next(
        &mut self,
        member: Option<u64>,
        random: &mut impl FnMut() -> f64,
    ) -> Duration {
        match member {
            Some(id) if !self.failed.contains(&id) => self.failed.push(id),
            // The same member again, or none at all: there is nobody else to go to.
            Some(_) | None => return self.wait(random),
        }
        if self.failed.len() >= self.quorum {
            self.wait(random)
        } else {
            Duration::ZERO
        }
    }

    /// The wait before a new round, whoever may be left in this one.
    pub(crate) fn wait(&mut self, random: &mut impl FnMut() -> f64) -> Duration {
        // Held below the cap so that jitter still spreads the longest waits.
        let longest = LONGEST_WAIT.as_secs_f64() / (1.0 + JITTER);
        let doublings = i32::try_from(self.rounds.min(30)).unwrap_or(30);
        let base = (FIRST_WAIT.as_secs_f64() * 2_f64.powi(doublings)).min(longest);
        self.failed.clear();
        self.rounds = self.rounds.saturating_add(1);
        let spread = JITTER * (2.0 * random().clamp(0.0, 1.0) - 1.0);
        Duration::from_secs_f64(base * (1.0 + spread)).min(LONGEST_WAIT)
    }
}

fn quorum_of(members: usize) -> usize {
    members / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn middle() -> impl FnMut() -> f64 {
        || 0.5
    }

    #[test]
    fn a_quorum_is_asked_without_pause_before_each_wait() {
        for (members, quorum) in [(1, 1), (3, 2), (5, 3), (7, 4)] {
            let mut backoff = QuorumBackoff::new(members);
            for round in 0..3 {
                for member in 1..quorum {
                    assert_eq!(backoff.next(Some(member), &mut middle()), Duration::ZERO);
                }
                let want = FIRST_WAIT * 2_u32.pow(round);
                assert_eq!(
                    backoff.next(Some(quorum), &mut middle()),
                    want,
                    "{members} members"
                );
            }
        }
    }

    #[test]
    fn one_live_member_that_fails_again_is_not_asked_in_a_hot_loop() {
        let mut backoff = QuorumBackoff::new(5);
        assert_eq!(backoff.next(Some(1), &mut middle()), Duration::ZERO);
        assert_eq!(backoff.next(Some(1), &mut middle()), FIRST_WAIT);
        assert_eq!(backoff.next(None, &mut middle()), FIRST_WAIT * 2);
    }

    #[test]
    fn waits_grow_to_just_under_a_second_and_stay_jittered() {
        let mut backoff = QuorumBackoff::new(1);
        let waits: Vec<_> = (0..40)
            .map(|_| backoff.next(Some(1), &mut middle()))
            .collect();
        assert!(waits.is_sorted());
        assert_eq!(waits[4], Duration::from_millis(400));
        let low = backoff.clone().next(Some(1), &mut || 0.0);
        let high = backoff.next(Some(1), &mut || 1.0);
        assert!(
            high <= LONGEST_WAIT && high > Duration::from_millis(990),
            "{high:?}"
        );
        assert!(low < Duration::from_millis(820), "{low:?}");
    }

    #[test]
    fn endpoints_that_change_change_the_quorum() {
        let mut backoff = QuorumBackoff::new(1);
        backoff.set_members(3);
        assert_eq!(backoff.next(Some(1), &mut middle()), Duration::ZERO);
        assert_eq!(backoff.next(Some(2), &mut middle()), FIRST_WAIT);
    }

    proptest! {
        #[test]
        fn no_order_of_failures_waits_too_long_or_spins(
            members in prop::sample::select(vec![1_usize, 3, 5, 7]),
            failures in prop::collection::vec((prop::option::of(0_u64..7), 0.0_f64..=1.0), 1..200),
        ) {
            let mut backoff = QuorumBackoff::new(members);
            let (mut without_pause, mut waits) = (0, 0_u32);
            for (member, random) in failures {
                let wait = backoff.next(member, &mut || random);
                prop_assert!(wait <= LONGEST_WAIT);
                if wait.is_zero() {
                    without_pause += 1;
                    prop_assert!(without_pause < quorum_of(members), "a quorum failed without a wait");
                } else {
                    prop_assert!(wait >= FIRST_WAIT.mul_f64(0.899));
                    let ideal = FIRST_WAIT.mul_f64(2_f64.powi(waits.min(6).try_into().unwrap()));
                    prop_assert!(wait <= ideal.mul_f64(1.101));
                    without_pause = 0;
                    waits += 1;
                }
            }
        }

        #[test]
        fn distinct_members_are_all_asked_before_the_wait(
            members in prop::sample::select(vec![1_usize, 3, 5, 7]),
            order in Just((0_u64..7).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut backoff = QuorumBackoff::new(members);
            let zeros = order
                .into_iter()
                .take_while(|id| backoff.next(Some(*id), &mut || 0.3).is_zero())
                .count();
            prop_assert_eq!(zeros, members / 2);
        }
    }
}
