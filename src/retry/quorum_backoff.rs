//! The delay before the next attempt of a call: none while there are other members to try, then a growing one.

use std::time::Duration;

use crate::runtime::backoff::{Backoff, BackoffTimer};

const FIRST_DELAY: Duration = Duration::from_millis(25);
const MAX_DELAY: Duration = Duration::from_secs(1);
const JITTER: f64 = 0.1;
/// Grows to less than [`MAX_DELAY`], so that jitter still spreads the longest delays.
const BACKOFF: Backoff =
    Backoff::new(FIRST_DELAY, Duration::from_nanos(909_090_909)).jitter(JITTER);

/// The delays of one call.
///
/// A *round* tries members without delay until a quorum of them (n/2 + 1) has failed: then no member could have served
/// the call, and trying the others would only add load. Each round ends with a delay of 25 ms ± 10 %, doubled per round
/// up to 1 s.
#[derive(Clone, Debug)]
pub(crate) struct QuorumBackoff {
    quorum: usize,
    failed: Vec<u64>,
    rounds: BackoffTimer,
}

impl QuorumBackoff {
    pub(crate) fn new(members: usize) -> Self {
        Self {
            quorum: quorum_of(members),
            failed: Vec::new(),
            rounds: BACKOFF.start(),
        }
    }

    /// Sets the number of endpoints, which can change during a call.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.quorum = quorum_of(members);
    }

    /// Returns the delay after `member` failed; `None` means that no member was available. `random` returns numbers
    /// between 0 and 1.
    pub(crate) fn next(
        &mut self,
        member: Option<u64>,
        random: &mut impl FnMut() -> f64,
    ) -> Duration {
        match member {
            Some(id) if !self.failed.contains(&id) => self.failed.push(id),
            // The same member again, or none at all: there is no other member to try.
            Some(_) | None => return self.delay(random),
        }
        if self.failed.len() >= self.quorum {
            self.delay(random)
        } else {
            Duration::ZERO
        }
    }

    /// Returns the delay before a new round, even if this round has untried members.
    pub(crate) fn delay(&mut self, random: &mut impl FnMut() -> f64) -> Duration {
        self.failed.clear();
        self.rounds.next_delay(random()).min(MAX_DELAY)
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
    fn quorum_is_tried_before_each_delay() {
        for (members, quorum) in [(1, 1), (3, 2), (5, 3), (7, 4)] {
            let mut backoff = QuorumBackoff::new(members);
            for round in 0..3 {
                for member in 1..quorum {
                    assert_eq!(backoff.next(Some(member), &mut middle()), Duration::ZERO);
                }
                let want = FIRST_DELAY * 2_u32.pow(round);
                assert_eq!(
                    backoff.next(Some(quorum), &mut middle()),
                    want,
                    "{members} members"
                );
            }
        }
    }

    #[test]
    fn single_failing_member_is_not_retried_at_once() {
        let mut backoff = QuorumBackoff::new(5);
        assert_eq!(backoff.next(Some(1), &mut middle()), Duration::ZERO);
        assert_eq!(backoff.next(Some(1), &mut middle()), FIRST_DELAY);
        assert_eq!(backoff.next(None, &mut middle()), FIRST_DELAY * 2);
    }

    #[test]
    fn delays_grow_to_one_second_with_jitter() {
        let mut backoff = QuorumBackoff::new(1);
        let delays: Vec<_> = (0..40)
            .map(|_| backoff.next(Some(1), &mut middle()))
            .collect();
        assert!(delays.is_sorted());
        assert_eq!(delays[4], Duration::from_millis(400));
        let low = backoff.clone().next(Some(1), &mut || 0.0);
        let high = backoff.next(Some(1), &mut || 1.0);
        assert!(
            high <= MAX_DELAY && high > Duration::from_millis(990),
            "{high:?}"
        );
        assert!(low < Duration::from_millis(820), "{low:?}");
    }

    #[test]
    fn changed_endpoints_change_the_quorum() {
        let mut backoff = QuorumBackoff::new(1);
        backoff.set_members(3);
        assert_eq!(backoff.next(Some(1), &mut middle()), Duration::ZERO);
        assert_eq!(backoff.next(Some(2), &mut middle()), FIRST_DELAY);
    }

    proptest! {
        #[test]
        fn any_failures_neither_spin_nor_stall(
            members in prop::sample::select(vec![1_usize, 3, 5, 7]),
            failures in prop::collection::vec((prop::option::of(0_u64..7), 0.0_f64..=1.0), 1..200),
        ) {
            let mut backoff = QuorumBackoff::new(members);
            let (mut immediate, mut delays) = (0, 0_u32);
            for (member, random) in failures {
                let delay = backoff.next(member, &mut || random);
                prop_assert!(delay <= MAX_DELAY);
                if delay.is_zero() {
                    immediate += 1;
                    prop_assert!(immediate < quorum_of(members), "a quorum failed without a delay");
                } else {
                    prop_assert!(delay >= FIRST_DELAY.mul_f64(0.899));
                    let ideal = FIRST_DELAY.mul_f64(2_f64.powi(delays.min(6).try_into().unwrap()));
                    prop_assert!(delay <= ideal.mul_f64(1.101));
                    immediate = 0;
                    delays += 1;
                }
            }
        }

        #[test]
        fn distinct_members_are_tried_before_the_delay(
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
