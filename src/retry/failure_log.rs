//! The failed attempts of one call. Combines decision, policy, pushback and delays.

use std::time::Duration;

use super::{
    FailedAttempt, RetryDecision, RetryPolicy,
    decision::{decide, may_be_split, may_repeat, outcome_of_call, remedy, shows_other_success},
    pushback::Pushback,
    quorum_backoff::QuorumBackoff,
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::rpc::Rpc,
};

/// How a call is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPlan {
    /// Delay before the next attempt; the retry budget can add to it.
    pub(crate) delay: Duration,
    /// Whether a new token is needed first.
    pub(crate) renew_token: bool,
}

/// The failed attempts of one call. Created at the first failure.
#[derive(Clone, Debug)]
pub(crate) struct FailureLog {
    rpc: Rpc,
    members: usize,
    backoff: QuorumBackoff,
    attempts: u32,
    retries_since_pushback: u32,
    /// Whether the token was renewed after the last failure.
    token_renewed: bool,
    any_unknown: bool,
    /// Members not to try next, as long as there are others.
    avoided: Vec<u64>,
    /// Member of the last failure.
    last_member: u64,
    last: Option<Error>,
}

impl FailureLog {
    pub(crate) fn new(rpc: Rpc, members: usize) -> Self {
        Self {
            rpc,
            members,
            backoff: QuorumBackoff::new(members),
            attempts: 0,
            retries_since_pushback: 0,
            token_renewed: false,
            any_unknown: false,
            avoided: Vec::new(),
            last_member: 0,
            last: None,
        }
    }

    /// Sets the number of endpoints, which can change during a call.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.members = members;
        self.backoff.set_members(members);
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns whether the next attempt should use another member, if there is one.
    pub(crate) fn avoids(&self, member: u64) -> bool {
        self.avoided.contains(&member)
    }

    /// Returns the kind of the last failure.
    pub(crate) fn last_kind(&self) -> Option<ErrorKind> {
        self.last.as_ref().map(Error::kind)
    }

    /// Returns the member and the kind of the last failure.
    pub(crate) fn last_failure(&self) -> Option<(u64, ErrorKind)> {
        Some((self.last_member, self.last_kind()?))
    }

    /// Returns whether this failure shows that another attempt succeeded: an earlier one, or one that is in flight.
    pub(crate) fn shows_success(&self, error: &Error, other_in_flight: bool) -> bool {
        let other_unknown = self.any_unknown || other_in_flight;
        shows_other_success(self.rpc.class, error.kind(), other_unknown)
    }

    /// Records an attempt in flight that is cancelled because the call has failed.
    pub(crate) fn record_cancelled(&mut self, may_be_sent: bool) {
        self.attempts = self.attempts.saturating_add(1);
        self.any_unknown |= may_be_sent && self.rpc.is_write();
    }

    /// Returns whether the last failure ends the call, even if another attempt is in flight: every member would respond
    /// like that, or the call is over.
    pub(crate) fn last_is_final(&self) -> bool {
        let kind = self.last_kind();
        kind.is_some_and(|kind| remedy(kind) == RetryDecision::Fail)
    }

    /// Records a failed attempt on a member. Returns how to retry, or `None` if the call fails with
    /// [`into_error`](Self::into_error). `random` returns numbers between 0 and 1.
    pub(crate) fn record(
        &mut self,
        policy: &dyn RetryPolicy,
        (member, error): (u64, Error),
        pushback: Option<Pushback>,
        elapsed: Duration,
        random: &mut impl FnMut() -> f64,
    ) -> Option<RetryPlan> {
        let error = if may_be_split(self.rpc.split_rejection, error.kind()) {
            error.with_outcome(Outcome::Unknown)
        } else {
            error
        };
        self.any_unknown |= error.outcome() == Outcome::Unknown;
        self.attempts = self.attempts.saturating_add(1);
        let attempt = FailedAttempt {
            rpc: self.rpc.path,
            class: self.rpc.class,
            kind: error.kind(),
            code: error.code(),
            outcome: error.outcome(),
            standard: decide(self.rpc.class, error.kind(), error.outcome()),
            number: self.attempts,
            retries_since_pushback: self.retries_since_pushback,
            elapsed,
            members: self.members,
            pushback,
            random: random(),
        };
        self.last = Some(error);
        self.last_member = member;
        let plan = self.plan(policy, &attempt, member, random);
        self.avoided.push(member);
        let at_once = plan.is_some_and(|plan| plan.delay.is_zero());
        if !at_once || self.avoided.len() >= self.members {
            self.avoided.clear();
        }
        plan
    }

    fn plan(
        &mut self,
        policy: &dyn RetryPolicy,
        attempt: &FailedAttempt,
        member: u64,
        random: &mut impl FnMut() -> f64,
    ) -> Option<RetryPlan> {
        // Called even if the decision is ignored below, because policies count failures.
        let decision = policy.decide(attempt);
        let call_ended = matches!(
            attempt.kind,
            ErrorKind::DeadlineExceeded | ErrorKind::Shutdown
        );
        if call_ended || !may_repeat(attempt.class, attempt.outcome) {
            return None;
        }
        let fixed_delay = match (decision, attempt.pushback) {
            (RetryDecision::Fail, _) | (_, Some(Pushback::Never)) => return None,
            (_, Some(Pushback::After(delay))) | (RetryDecision::After(delay), None) => Some(delay),
            (
                RetryDecision::NextMember | RetryDecision::Backoff | RetryDecision::RenewToken,
                None,
            ) => None,
        };
        self.retries_since_pushback = match attempt.pushback {
            Some(_) => 0,
            None => self.retries_since_pushback.saturating_add(1),
        };
        let renew_token = [attempt.standard, decision].contains(&RetryDecision::RenewToken);
        let renewed_before = self.token_renewed;
        if fixed_delay.is_none() || !renew_token {
            self.token_renewed = renew_token;
        }
        let delay = match fixed_delay {
            Some(delay) => delay,
            // The renewed token was rejected, too: the member may need time until it accepts the token.
            None if renew_token && renewed_before => self.backoff.delay(random),
            None if renew_token => Duration::ZERO,
            None if decision == RetryDecision::NextMember => {
                self.backoff.next(Some(member), random)
            }
            None => self.backoff.delay(random),
        };
        Some(RetryPlan { delay, renew_token })
    }

    /// Returns the outcome of the call if it ends with `last`.
    pub(crate) fn outcome(&self, last: Outcome) -> Outcome {
        outcome_of_call(last, self.any_unknown)
    }

    /// Adds the operation, the number of attempts and the outcome of all attempts to an error that ends the call.
    pub(crate) fn complete(&self, error: Error) -> Error {
        let outcome = self.outcome(error.outcome());
        error
            .with_rpc(self.rpc)
            .with_outcome(outcome)
            .with_attempts(self.attempts)
    }

    /// Returns the error of the call: that of the last attempt.
    pub(crate) fn into_error(mut self) -> Error {
        let last = self.last.take().unwrap_or_else(Error::shut_down);
        self.complete(last)
    }

    /// Returns the error of a call whose deadline passed between two attempts. If the last attempt was refused for its
    /// user or token, that is the reason.
    pub(crate) fn deadline_exceeded(&self) -> Error {
        if self.last.as_ref().is_some_and(Error::is_auth) {
            return self.clone().into_error();
        }
        let (outcome, reason) = match &self.last {
            Some(last) => (
                last.outcome(),
                format!(
                    "the deadline passed; the last attempt failed: {}",
                    last.brief()
                ),
            ),
            None => (
                Outcome::NotSent,
                "the deadline passed before the first attempt".to_owned(),
            ),
        };
        self.complete(Error::new(ErrorKind::DeadlineExceeded, outcome, reason))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        proto::rpc::{self, SplitRejection},
        retry::StandardRetry,
    };

    const OUTCOMES: [Outcome; 3] = [Outcome::NotSent, Outcome::Rejected, Outcome::Unknown];

    /// A policy that retries everything at once.
    #[derive(Debug)]
    struct AlwaysRetry;

    impl RetryPolicy for AlwaysRetry {
        fn decide(&self, _: &FailedAttempt) -> RetryDecision {
            RetryDecision::After(Duration::ZERO)
        }
    }

    fn failure(kind: ErrorKind, outcome: Outcome, member: u64) -> (u64, Error) {
        (member, Error::new(kind, outcome, ""))
    }

    fn record(
        log: &mut FailureLog,
        policy: &dyn RetryPolicy,
        failure: &(u64, Error),
        pushback: Option<Pushback>,
    ) -> Option<RetryPlan> {
        log.record(
            policy,
            failure.clone(),
            pushback,
            Duration::ZERO,
            &mut || 0.5,
        )
    }

    fn next(log: &mut FailureLog, failure: &(u64, Error)) -> Option<RetryPlan> {
        record(log, &StandardRetry, failure, None)
    }

    fn retry_after(delay: u64) -> RetryPlan {
        RetryPlan {
            delay: ms(delay),
            renew_token: false,
        }
    }

    fn renew_after(delay: u64) -> RetryPlan {
        RetryPlan {
            delay: ms(delay),
            renew_token: true,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn unsent_write_tries_all_members_then_waits() {
        let mut put = FailureLog::new(rpc::PUT, 3);
        let unsent = |member| failure(ErrorKind::ConnectionLost, Outcome::NotSent, member);
        assert_eq!(next(&mut put, &unsent(1)), Some(retry_after(0)));
        assert!(put.avoids(1) && !put.avoids(2));
        assert_eq!(next(&mut put, &unsent(2)), Some(retry_after(25)));
        assert!(!put.avoids(1) && !put.avoids(2));
        assert_eq!(next(&mut put, &unsent(3)), Some(retry_after(0)));
        let lost = failure(ErrorKind::ConnectionLost, Outcome::Unknown, 1);
        assert_eq!(next(&mut put, &lost), None);
        assert_eq!(
            (put.attempts(), put.outcome(Outcome::NotSent)),
            (4, Outcome::Unknown)
        );
        assert_eq!(put.into_error().outcome(), Outcome::Unknown);
    }

    #[test]
    fn policy_cannot_retry_lost_write_or_ended_call() {
        for &kind in ErrorKind::ALL {
            let mut put = FailureLog::new(rpc::PUT, 3);
            let lost = failure(kind, Outcome::Unknown, 1);
            assert_eq!(
                record(&mut put, &AlwaysRetry, &lost, None),
                None,
                "{kind:?}"
            );
        }
        for kind in [ErrorKind::DeadlineExceeded, ErrorKind::Shutdown] {
            let mut get = FailureLog::new(rpc::RANGE, 3);
            let ended = failure(kind, Outcome::NotSent, 1);
            assert_eq!(
                record(&mut get, &AlwaysRetry, &ended, None),
                None,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn transaction_that_other_members_may_apply_is_not_repeated() {
        let denied = failure(ErrorKind::PermissionDenied, Outcome::Rejected, 1);
        let outdated = failure(ErrorKind::AuthOldRevision, Outcome::Rejected, 1);
        for (split, denied_plan, outdated_plan) in [
            (
                SplitRejection::None,
                Some(retry_after(0)),
                Some(renew_after(0)),
            ),
            (SplitRejection::Permission, None, Some(renew_after(0))),
            (SplitRejection::UserOrPermission, None, None),
        ] {
            let mut txn = FailureLog::new(rpc::TXN.with_split_rejection(split), 3);
            let plan = record(&mut txn, &AlwaysRetry, &denied, None);
            assert_eq!(plan, denied_plan, "{split:?}");
            let mut txn = FailureLog::new(rpc::TXN.with_split_rejection(split), 3);
            assert_eq!(next(&mut txn, &outdated), outdated_plan, "{split:?}");
            if outdated_plan.is_none() {
                assert_eq!(txn.into_error().outcome(), Outcome::Unknown);
            }
        }
    }

    #[test]
    fn lease_granted_by_a_lost_attempt_is_a_success() {
        let exists = failure(ErrorKind::LeaseExists, Outcome::Rejected, 2);
        let mut grant = FailureLog::new(rpc::LEASE_GRANT, 3);
        let lost = failure(ErrorKind::ConnectionLost, Outcome::Unknown, 1);
        assert_eq!(next(&mut grant, &lost), Some(retry_after(0)));
        assert!(grant.shows_success(&exists.1, false));

        let mut other = FailureLog::new(rpc::LEASE_GRANT, 3);
        let unsent = failure(ErrorKind::ConnectionLost, Outcome::NotSent, 1);
        assert_eq!(next(&mut other, &unsent), Some(retry_after(0)));
        assert!(
            !other.shows_success(&exists.1, false),
            "another client granted the lease"
        );
        assert_eq!(next(&mut other, &exists), None);
    }

    #[test]
    fn lease_granted_or_revoked_by_a_copy_in_flight_is_a_success() {
        for (rpc, kind) in [
            (rpc::LEASE_GRANT, ErrorKind::LeaseExists),
            (rpc::LEASE_REVOKE, ErrorKind::LeaseNotFound),
        ] {
            let log = FailureLog::new(rpc, 3);
            let (_, error) = failure(kind, Outcome::Rejected, 2);
            assert!(log.shows_success(&error, true), "{rpc:?}");
            assert!(!log.shows_success(&error, false), "{rpc:?}");
        }
        let get = FailureLog::new(rpc::RANGE, 3);
        let (_, error) = failure(ErrorKind::KeyNotFound, Outcome::Rejected, 2);
        assert!(!get.shows_success(&error, true));
    }

    #[test]
    fn cancelled_copy_of_a_write_makes_the_outcome_unknown() {
        let denied = failure(ErrorKind::PermissionDenied, Outcome::Rejected, 1);
        for (rpc, sent, outcome) in [
            (rpc::LEASE_GRANT, true, Outcome::Unknown),
            (rpc::LEASE_GRANT, false, Outcome::Rejected),
            (rpc::RANGE, true, Outcome::Rejected),
        ] {
            let mut log = FailureLog::new(rpc, 3);
            assert_eq!(next(&mut log, &denied), None);
            assert!(log.last_is_final());
            log.record_cancelled(sent);
            let error = log.into_error();
            assert_eq!((error.outcome(), error.attempts()), (outcome, 2), "{rpc:?}");
        }
    }

    #[test]
    fn transient_failure_does_not_end_a_call_with_another_copy() {
        let mut get = FailureLog::new(rpc::RANGE, 3);
        let lost = failure(ErrorKind::ConnectionLost, Outcome::Unknown, 1);
        assert_eq!(record(&mut get, &crate::retry::NoRetry, &lost, None), None);
        assert!(!get.last_is_final());
    }

    #[test]
    fn token_is_renewed_at_once_then_with_delay() {
        let mut get = FailureLog::new(rpc::RANGE, 3);
        let stale = failure(ErrorKind::InvalidAuthToken, Outcome::Rejected, 1);
        assert_eq!(next(&mut get, &stale), Some(renew_after(0)));
        assert!(get.avoids(1), "the next attempt uses another member");
        assert_eq!(next(&mut get, &stale), Some(renew_after(25)));
        assert_eq!(next(&mut get, &stale), Some(renew_after(50)));
    }

    #[test]
    fn pushback_overrides_the_policy() {
        let mut get = FailureLog::new(rpc::RANGE, 3);
        let busy = failure(ErrorKind::TooManyRequests, Outcome::Rejected, 1);
        let after = Some(Pushback::After(ms(700)));
        assert_eq!(
            record(&mut get, &StandardRetry, &busy, after),
            Some(retry_after(700))
        );
        assert_eq!(
            record(&mut get, &AlwaysRetry, &busy, after),
            Some(retry_after(700))
        );
        let never = Some(Pushback::Never);
        assert_eq!(record(&mut get, &AlwaysRetry, &busy, never), None);
    }

    proptest! {
        #[test]
        fn write_ends_with_its_first_unknown_attempt(
            always_retry in any::<bool>(),
            failures in prop::collection::vec(
                (0..ErrorKind::ALL.len(), 0..3_usize, 0_u64..5, prop::option::of(0_u64..99)), 1..50),
        ) {
            let policy: &dyn RetryPolicy = if always_retry { &AlwaysRetry } else { &StandardRetry };
            let mut put = FailureLog::new(rpc::PUT, 5);
            for (kind, outcome, member, pushback) in failures {
                let outcome = OUTCOMES[outcome];
                let failed = failure(ErrorKind::ALL[kind], outcome, member);
                let pushback = pushback.map(|delay| Pushback::After(ms(delay)));
                let plan = record(&mut put, policy, &failed, pushback);
                if outcome == Outcome::Unknown {
                    prop_assert_eq!(plan, None);
                }
                if plan.is_none() {
                    prop_assert_eq!(put.outcome(outcome), outcome);
                    break;
                }
            }
        }
    }
}
