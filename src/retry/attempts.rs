//! The attempts of one call, from the first to the last: where table, timing, policy and pushback meet.

use super::policy::{Attempt, RetryDecision, RetryPolicy};
use super::pushback::Pushback;
use super::timing::QuorumBackoff;
use super::{
    RpcClass,
    table::{self, Decision, Pace},
};
use crate::error::{Code, ErrorKind, Outcome};
use std::time::Duration;

/// One attempt that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) code: Option<Code>,
    pub(crate) outcome: Outcome,
    /// Who was asked; `None` if nobody was there to ask.
    pub(crate) member: Option<u64>,
    pub(crate) pushback: Option<Pushback>,
    /// Since the call began.
    pub(crate) elapsed: Duration,
}

/// What the call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Try again after this long; the budget comes on top.
    Retry(Duration),
    /// Get a new token, and try again after this long.
    Refresh(Duration),
    /// An earlier attempt has done the work: the call succeeded.
    Done,
    /// Tell the caller, with [`Attempts::outcome`] as the outcome.
    Fail,
}

#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    rpc: &'static str,
    class: RpcClass,
    members: usize,
    backoff: QuorumBackoff,
    made: u32,
    since_pushback: u32,
    refreshed: bool,
    any_unknown: bool,
}

impl Attempts {
    pub(crate) fn new(rpc: &'static str, class: RpcClass, members: usize) -> Self {
        Self {
            rpc,
            class,
            members,
            backoff: QuorumBackoff::new(members),
            made: 0,
            since_pushback: 0,
            refreshed: false,
            any_unknown: false,
        }
    }

    /// The endpoints changed while the call was under way.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.members = members;
        self.backoff.set_members(members);
    }

    /// How many attempts have failed.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// The outcome of the call as a whole if it ends with `last`.
    pub(crate) fn outcome(&self, last: Outcome) -> Outcome {
        table::outcome_of_call(last, self.any_unknown)
    }

    /// Counts a failed attempt and says what comes next. `random` gives numbers in 0..1.
    pub(crate) fn failed(
        &mut self,
        policy: &dyn RetryPolicy,
        failure: &Failure,
        random: &mut impl FnMut() -> f64,
    ) -> Next {
        let earlier_unknown = self.any_unknown;
        self.any_unknown |= failure.outcome == Outcome::Unknown;
        self.made = self.made.saturating_add(1);
        if table::counts_as_done(self.class, failure.kind, earlier_unknown) {
            return Next::Done;
        }
        // Asked even where the answer cannot count: policies keep score of failures.
        let decision = policy.decide(&Attempt {
            rpc: self.rpc,
            class: self.class,
            kind: failure.kind,
            code: failure.code,
            outcome: failure.outcome,
            number: self.made,
            retries_since_pushback: self.since_pushback,
            elapsed: failure.elapsed,
            members: self.members,
            pushback: failure.pushback,
            random: random(),
        });
        let over = matches!(
            failure.kind,
            ErrorKind::DeadlineExceeded | ErrorKind::Shutdown
        );
        if over || !table::may_repeat(self.class, failure.outcome) {
            return Next::Fail;
        }
        let asked_wait = match (decision, failure.pushback) {
            (RetryDecision::Fail, _) | (_, Some(Pushback::Never)) => return Next::Fail,
            (_, Some(Pushback::After(wait))) | (RetryDecision::RetryAfter(wait), None) => {
                Some(wait)
            }
            (RetryDecision::Retry, None) => None,
        };
        self.since_pushback = match failure.pushback {
            Some(_) => 0,
            None => self.since_pushback.saturating_add(1),
        };
        let by_table = table::decide(self.class, failure.kind, failure.outcome);
        if by_table == Decision::Refresh {
            return Next::Refresh(asked_wait.unwrap_or_else(|| self.wait_for_token(random)));
        }
        self.refreshed = false;
        Next::Retry(asked_wait.unwrap_or_else(|| match by_table {
            Decision::Retry(Pace::NextMember) => self.backoff.next(failure.member, random),
            // The policy wants what the table would not: slowly, then.
            Decision::Retry(Pace::Backoff) | Decision::Refresh | Decision::Fail => {
                self.backoff.wait(random)
            }
        }))
    }

    /// A fresh token that is refused again was not known to that member yet, or never will be: no hot loop.
    fn wait_for_token(&mut self, random: &mut impl FnMut() -> f64) -> Duration {
        if std::mem::replace(&mut self.refreshed, true) {
            self.backoff.wait(random)
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::StandardRetry;
    use super::*;
    use proptest::prelude::*;

    const RPC: &str = "/etcdserverpb.KV/Put";
    const OUTCOMES: [Outcome; 3] = [Outcome::NotSent, Outcome::Rejected, Outcome::Unknown];

    /// A policy that wants everything again, at once.
    #[derive(Debug)]
    struct Stubborn;

    impl RetryPolicy for Stubborn {
        fn decide(&self, _: &Attempt) -> RetryDecision {
            RetryDecision::RetryAfter(Duration::ZERO)
        }
    }

    fn failure(kind: ErrorKind, outcome: Outcome, member: u64) -> Failure {
        Failure {
            kind,
            code: None,
            outcome,
            member: Some(member),
            pushback: None,
            elapsed: Duration::ZERO,
        }
    }

    fn next(attempts: &mut Attempts, failure: Failure) -> Next {
        attempts.failed(&StandardRetry, &failure, &mut || 0.5)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_write_nobody_took_goes_round_the_members_and_then_waits() {
        let mut put = Attempts::new(RPC, RpcClass::Mutation, 3);
        let refused = |member| failure(ErrorKind::ConnectionLost, Outcome::NotSent, member);
        assert_eq!(next(&mut put, refused(1)), Next::Retry(ms(0)));
        assert_eq!(next(&mut put, refused(2)), Next::Retry(ms(25)));
        assert_eq!(next(&mut put, refused(3)), Next::Retry(ms(0)));
        let lost = failure(ErrorKind::ConnectionLost, Outcome::Unknown, 1);
        assert_eq!(next(&mut put, lost), Next::Fail);
        assert_eq!(
            (put.made(), put.outcome(Outcome::NotSent)),
            (4, Outcome::Unknown)
        );
    }

    #[test]
    fn no_policy_makes_a_lost_write_or_an_ended_call_go_on() {
        for &kind in ErrorKind::ALL {
            let mut put = Attempts::new(RPC, RpcClass::Mutation, 3);
            let lost = failure(kind, Outcome::Unknown, 1);
            assert_eq!(
                put.failed(&Stubborn, &lost, &mut || 0.5),
                Next::Fail,
                "{kind:?}"
            );
        }
        for kind in [ErrorKind::DeadlineExceeded, ErrorKind::Shutdown] {
            let mut get = Attempts::new(RPC, RpcClass::Read, 3);
            let ended = failure(kind, Outcome::NotSent, 1);
            assert_eq!(
                get.failed(&Stubborn, &ended, &mut || 0.5),
                Next::Fail,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_lease_that_a_lost_attempt_granted_is_a_success() {
        let exists = failure(ErrorKind::LeaseExists, Outcome::Rejected, 2);
        let mut grant = Attempts::new(RPC, RpcClass::Grant, 3);
        let lost = failure(ErrorKind::ConnectionLost, Outcome::Unknown, 1);
        assert_eq!(next(&mut grant, lost), Next::Retry(ms(0)));
        assert_eq!(next(&mut grant, exists), Next::Done);

        let mut unlucky = Attempts::new(RPC, RpcClass::Grant, 3);
        let refused = failure(ErrorKind::ConnectionLost, Outcome::NotSent, 1);
        assert_eq!(next(&mut unlucky, refused), Next::Retry(ms(0)));
        assert_eq!(
            next(&mut unlucky, exists),
            Next::Fail,
            "the lease is somebody else's"
        );
    }

    #[test]
    fn a_token_is_renewed_at_once_and_then_with_patience() {
        let mut get = Attempts::new(RPC, RpcClass::Read, 3);
        let stale = failure(ErrorKind::InvalidAuthToken, Outcome::Rejected, 1);
        assert_eq!(next(&mut get, stale), Next::Refresh(ms(0)));
        assert_eq!(next(&mut get, stale), Next::Refresh(ms(25)));
        assert_eq!(next(&mut get, stale), Next::Refresh(ms(50)));
    }

    #[test]
    fn the_servers_word_on_waiting_counts() {
        let mut get = Attempts::new(RPC, RpcClass::Read, 3);
        let mut busy = failure(ErrorKind::TooManyRequests, Outcome::Rejected, 1);
        busy.pushback = Some(Pushback::After(ms(700)));
        assert_eq!(next(&mut get, busy), Next::Retry(ms(700)));
        assert_eq!(
            get.failed(&Stubborn, &busy, &mut || 0.5),
            Next::Retry(ms(700))
        );
        busy.pushback = Some(Pushback::Never);
        assert_eq!(get.failed(&Stubborn, &busy, &mut || 0.5), Next::Fail);
    }

    proptest! {
        #[test]
        fn a_write_is_sent_at_most_once_with_unknown_outcome(
            stubborn in any::<bool>(),
            failures in prop::collection::vec(
                (0..ErrorKind::ALL.len(), 0..3_usize, 0_u64..5, prop::option::of(0_u64..99)), 1..50),
        ) {
            let policy: &dyn RetryPolicy = if stubborn { &Stubborn } else { &StandardRetry };
            let mut put = Attempts::new(RPC, RpcClass::Mutation, 5);
            for (kind, outcome, member, pushback) in failures {
                let mut failed = failure(ErrorKind::ALL[kind], OUTCOMES[outcome], member);
                failed.pushback = pushback.map(|wait| Pushback::After(ms(wait)));
                let next = put.failed(policy, &failed, &mut || 0.5);
                if failed.outcome == Outcome::Unknown {
                    prop_assert_eq!(next, Next::Fail);
                }
                if next == Next::Fail {
                    prop_assert_eq!(put.outcome(failed.outcome), failed.outcome);
                    break;
                }
            }
        }
    }
}
