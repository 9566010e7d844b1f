use proptest::prelude::*;

use super::*;
use crate::{
    proto::rpc::{self, SplitRejection},
    retry::{NoRetry, StandardRetry},
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
fn stale_read_ends_once_quorum_was_behind() {
    let stale = |member| failure(ErrorKind::StaleRead, Outcome::Rejected, member);
    let mut read = FailureLog::new(rpc::RANGE, 5);
    for member in [1, 2] {
        assert_eq!(next(&mut read, &stale(member)), Some(retry_after(0)));
        assert!(read.avoids(member));
    }
    assert_eq!(next(&mut read, &stale(3)), None);
    // No policy makes it retry longer, or not at all.
    let mut read = FailureLog::new(rpc::RANGE, 3);
    let first = record(&mut read, &NoRetry, &stale(1), None);
    assert_eq!(first, Some(retry_after(0)));
    assert_eq!(record(&mut read, &AlwaysRetry, &stale(2), None), None);
    let regressed = failure(ErrorKind::RevisionRegressed, Outcome::Rejected, 3);
    assert_eq!(record(&mut read, &AlwaysRetry, &regressed, None), None);
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
fn transaction_with_split_rejection_is_not_repeated() {
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
fn lease_changed_by_copy_in_flight_is_success() {
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
fn cancelled_copy_makes_outcome_of_write_unknown() {
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
fn transient_failure_leaves_other_copy_in_flight() {
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
