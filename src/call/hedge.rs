//! Decides when a late request is also sent to another member. Pure: time is an argument.
//!
//! A slow member does not fail, so a retry would come late or not at all. A hedge sends a copy of the request elsewhere
//! while the first copy stays in flight; the first response wins. Only requests that may be repeated are hedged.

use std::time::Duration;

use tokio::time::Instant;

use crate::{error::Outcome, proto::rpc::Rpc, retry::decision::may_repeat};

/// Largest number of copies of one request in flight at the same time.
const MAX_COPIES: usize = 2;
/// Time after which a copy that could not be sent is considered again: there was no other member, or no budget.
pub(super) const RECHECK_AFTER: Duration = Duration::from_millis(200);

/// Returns whether a request may be sent to two members at the same time. No other member can serve a request that
/// names its member, and the response to a blocking request is always late.
pub(super) fn may_be_hedged(rpc: Rpc, named: bool) -> bool {
    !named && !rpc.blocking && may_repeat(rpc.class, Outcome::Unknown)
}

/// Decides when the next copy of a request is sent.
///
/// A copy is sent if fewer than two copies are in flight and all of them are late. After a failure it also waits for
/// the delay of the retry policy.
#[derive(Debug)]
pub(super) struct HedgeSchedule {
    /// Time from which each copy in flight is late, in the order in which the copies were sent.
    late_from: Vec<Instant>,
    /// Whether further copies may be sent.
    allowed: bool,
    /// Earliest time of the next copy, after a failure or an unsuccessful check.
    not_before: Option<Instant>,
}

impl HedgeSchedule {
    /// Starts with one copy in flight. Further copies are sent only if `allowed`.
    pub(super) fn new(late_from: Instant, allowed: bool) -> Self {
        Self {
            late_from: vec![late_from],
            allowed,
            not_before: None,
        }
    }

    /// Returns when to send the next copy, or `None` if the copies in flight are enough.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.allowed || self.late_from.len() >= MAX_COPIES {
            return None;
        }
        self.not_before.max(self.late_from.iter().max().copied())
    }

    /// Records a copy that counts as late from this time.
    pub(super) fn copy_sent(&mut self, late_from: Instant) {
        self.late_from.push(late_from);
    }

    /// Records that a copy failed, by its position among the copies in flight. `next` is the earliest time of another
    /// copy; `None` if there may be none.
    pub(super) fn copy_failed(&mut self, position: usize, next: Option<Instant>) {
        self.late_from.remove(position);
        self.allowed &= next.is_some();
        self.not_before = next;
    }

    /// Treats the oldest copy as late from now on: its member reports that it is not serving.
    pub(super) fn oldest_copy_is_late(&mut self, now: Instant) {
        if let Some(oldest) = self.late_from.first_mut() {
            *oldest = now.min(*oldest);
        }
    }

    /// Considers the next copy again later, because it could not be sent now.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.not_before = Some(now + RECHECK_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::rpc;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn only_repeatable_requests_are_hedged() {
        for rpc in [
            rpc::RANGE,
            rpc::AUTHENTICATE,
            rpc::LEASE_GRANT,
            rpc::LEASE_REVOKE,
            rpc::SERVER_RESIGN,
        ] {
            assert!(may_be_hedged(rpc, false), "{rpc:?}");
            assert!(!may_be_hedged(rpc, true), "{rpc:?} names its member");
        }
        for rpc in [
            rpc::PUT,
            rpc::TXN,
            rpc::DELETE_RANGE,
            rpc::SERVER_LOCK,
            rpc::SERVER_CAMPAIGN,
            rpc::SERVER_UNLOCK,
        ] {
            assert!(!may_be_hedged(rpc, false), "{rpc:?}");
        }
    }

    #[test]
    fn second_copy_is_due_when_first_is_late() {
        let late = Instant::now() + ms(400);
        let mut schedule = HedgeSchedule::new(late, true);
        assert_eq!(schedule.due(), Some(late));
        schedule.copy_sent(late + ms(400));
        assert_eq!(schedule.due(), None, "two copies are in flight");
        assert_eq!(HedgeSchedule::new(late, false).due(), None);
    }

    #[test]
    fn third_copy_waits_for_failure_and_late_copy() {
        let late = Instant::now() + ms(400);
        let mut schedule = HedgeSchedule::new(late, true);
        schedule.copy_sent(late + ms(400));
        schedule.copy_failed(0, Some(late + ms(10)));
        assert_eq!(
            schedule.due(),
            Some(late + ms(400)),
            "the second is not late"
        );
        schedule.copy_sent(late + ms(800));
        schedule.copy_failed(1, Some(late + ms(900)));
        assert_eq!(schedule.due(), Some(late + ms(900)), "after the delay");
    }

    #[test]
    fn refused_retry_ends_the_copies() {
        let late = Instant::now() + ms(400);
        let mut schedule = HedgeSchedule::new(late, true);
        schedule.copy_sent(late + ms(400));
        schedule.copy_failed(1, None);
        assert_eq!(schedule.due(), None);
        schedule.postpone(late + ms(500));
        schedule.oldest_copy_is_late(late + ms(500));
        assert_eq!(schedule.due(), None);
    }

    #[test]
    fn copy_without_member_or_budget_is_considered_again() {
        let late = Instant::now() + ms(400);
        let mut schedule = HedgeSchedule::new(late, true);
        schedule.postpone(late);
        assert_eq!(schedule.due(), Some(late + RECHECK_AFTER));
    }

    #[test]
    fn member_that_stops_serving_is_hedged_at_once() {
        let start = Instant::now();
        let mut schedule = HedgeSchedule::new(start + ms(400), true);
        schedule.oldest_copy_is_late(start + ms(250));
        assert_eq!(schedule.due(), Some(start + ms(250)));
        schedule.oldest_copy_is_late(start + ms(300));
        assert_eq!(schedule.due(), Some(start + ms(250)));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Due,
        Fail { position: usize, next: Option<u64> },
        Postpone,
        StopServing,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Due),
            2 => (0..2_usize, prop::option::weighted(0.9, 0..1000_u64))
                .prop_map(|(position, next)| Event::Fail { position, next }),
            1 => Just(Event::Postpone),
            1 => Just(Event::StopServing),
        ]
    }

    proptest! {
        #[test]
        fn copies_in_flight_are_at_most_two(
            hedged in any::<bool>(),
            events in prop::collection::vec((event(), 0..500_u64), 0..60),
        ) {
            let mut now = Instant::now();
            let mut schedule = HedgeSchedule::new(now + ms(400), hedged);
            let (mut sent, mut failed) = (1_usize, 0);
            for (event, pause) in events {
                now += ms(pause);
                match event {
                    Event::Due => if schedule.due().is_some_and(|due| due <= now) {
                        schedule.copy_sent(now + ms(400));
                        sent += 1;
                    },
                    Event::Fail { position, next } if position < sent - failed && sent - failed > 1 => {
                        schedule.copy_failed(position, next.map(|next| now + ms(next)));
                        failed += 1;
                    }
                    Event::Fail { .. } => {}
                    Event::Postpone => schedule.postpone(now),
                    Event::StopServing => schedule.oldest_copy_is_late(now),
                }
                prop_assert!(sent - failed <= MAX_COPIES);
                prop_assert!(hedged || sent == 1);
                prop_assert!(sent <= failed + 2, "a third copy needs a failure");
            }
        }
    }
}
