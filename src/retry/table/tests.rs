use super::*;
use crate::error::{Code, Error};

const OUTCOMES: [Outcome; 3] = [Outcome::NotSent, Outcome::Rejected, Outcome::Unknown];
const REPEATABLE: [RpcClass; 4] = [
    RpcClass::Read,
    RpcClass::Idempotent,
    RpcClass::Grant,
    RpcClass::Revoke,
];

fn answered(class: RpcClass, code: Code, message: &str) -> Decision {
    let error = Error::from_status(code, message);
    decide(class, error.kind(), error.outcome())
}

#[test]
fn a_write_with_unknown_outcome_is_never_tried_again() {
    for &kind in ErrorKind::ALL {
        assert_eq!(
            decide(RpcClass::Mutation, kind, Outcome::Unknown),
            Decision::Fail,
            "{kind:?}"
        );
    }
}

#[test]
fn a_write_is_tried_again_after_exactly_these_answers() {
    let retried: Vec<_> = ErrorKind::ALL
        .iter()
        .copied()
        .filter(|kind| passing(*kind) != Passing::Never)
        .filter(|kind| kind.outcome_of_answer() == Outcome::Rejected)
        .collect();
    assert_eq!(
        retried,
        [
            ErrorKind::TooManyRequests,
            ErrorKind::NotSupportedForLearner,
            ErrorKind::UserEmpty,
            ErrorKind::InvalidAuthToken,
            ErrorKind::AuthOldRevision,
            ErrorKind::NoLeader,
            ErrorKind::ProposalDropped,
        ]
    );
}

#[test]
fn a_write_that_never_left_goes_to_the_next_member() {
    for kind in [ErrorKind::ConnectionLost, ErrorKind::MemberUnresponsive] {
        assert_eq!(
            decide(RpcClass::Mutation, kind, Outcome::NotSent),
            Decision::Retry(Pace::NextMember)
        );
    }
}

#[test]
fn answers_of_etcd_lead_to_the_right_decision() {
    use Decision::{Fail, Refresh, Retry};
    use Pace::{Backoff, NextMember};
    for (code, message, read, write) in [
        (
            Code::Unavailable,
            "etcdserver: no leader",
            Retry(NextMember),
            Retry(NextMember),
        ),
        (
            Code::Unknown,
            "etcdserver: too many requests",
            Retry(Backoff),
            Retry(Backoff),
        ),
        (
            Code::Unknown,
            "raft proposal dropped",
            Retry(NextMember),
            Retry(NextMember),
        ),
        (
            Code::Unauthenticated,
            "etcdserver: invalid auth token",
            Refresh,
            Refresh,
        ),
        (
            Code::Unavailable,
            "etcdserver: request timed out",
            Retry(NextMember),
            Fail,
        ),
        (
            Code::Unavailable,
            "etcdserver: leader changed",
            Retry(NextMember),
            Fail,
        ),
        (
            Code::Unavailable,
            "never seen before",
            Retry(NextMember),
            Fail,
        ),
        (
            Code::Unknown,
            "context deadline exceeded",
            Retry(NextMember),
            Fail,
        ),
        (
            Code::PermissionDenied,
            "etcdserver: permission denied",
            Fail,
            Fail,
        ),
        (
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
            Fail,
            Fail,
        ),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            Fail,
            Fail,
        ),
    ] {
        assert_eq!(
            answered(RpcClass::Read, code, message),
            read,
            "read: {message}"
        );
        assert_eq!(
            answered(RpcClass::Mutation, code, message),
            write,
            "write: {message}"
        );
    }
}

#[test]
fn what_is_safe_to_repeat_is_decided_by_the_error_alone() {
    for &kind in ErrorKind::ALL {
        for class in REPEATABLE {
            for outcome in OUTCOMES {
                assert_eq!(
                    decide(class, kind, outcome),
                    decide(RpcClass::Read, kind, Outcome::NotSent)
                );
            }
        }
    }
}

#[test]
fn a_lease_found_or_gone_is_done_only_after_an_attempt_that_may_have_done_it() {
    assert!(counts_as_done(
        RpcClass::Grant,
        ErrorKind::LeaseExists,
        true
    ));
    assert!(counts_as_done(
        RpcClass::Revoke,
        ErrorKind::LeaseNotFound,
        true
    ));
    assert!(!counts_as_done(
        RpcClass::Grant,
        ErrorKind::LeaseExists,
        false
    ));
    assert!(!counts_as_done(
        RpcClass::Revoke,
        ErrorKind::LeaseNotFound,
        false
    ));
    assert!(!counts_as_done(
        RpcClass::Mutation,
        ErrorKind::LeaseExists,
        true
    ));
    assert!(!counts_as_done(
        RpcClass::Grant,
        ErrorKind::LeaseNotFound,
        true
    ));
}

#[test]
fn one_unknown_attempt_makes_the_call_unknown() {
    for last in OUTCOMES {
        assert_eq!(outcome_of_call(last, true), Outcome::Unknown);
        assert_eq!(outcome_of_call(last, false), last);
    }
}
