use super::*;
use crate::error::{Code, Error};

const OUTCOMES: [Outcome; 3] = [Outcome::NotSent, Outcome::Rejected, Outcome::Unknown];
const REPEATABLE: [RpcClass; 4] = [
    RpcClass::Read,
    RpcClass::Idempotent,
    RpcClass::Grant,
    RpcClass::Revoke,
];

fn decision_after(class: RpcClass, code: Code, message: &str) -> RetryDecision {
    let error = Error::from_status(code, message);
    decide(class, error.kind(), error.outcome())
}

#[test]
fn unknown_write_is_never_retried() {
    for &kind in ErrorKind::ALL {
        assert_eq!(
            decide(RpcClass::Mutation, kind, Outcome::Unknown),
            RetryDecision::Fail,
            "{kind:?}"
        );
    }
}

#[test]
fn rejected_write_is_retried_after_these_errors() {
    let retried: Vec<_> = ErrorKind::ALL
        .iter()
        .copied()
        .filter(|kind| remedy(*kind) != RetryDecision::Fail)
        .filter(|kind| kind.outcome_of_response() == Outcome::Rejected)
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
fn unsent_write_goes_to_the_next_member() {
    for kind in [ErrorKind::ConnectionLost, ErrorKind::MemberUnresponsive] {
        assert_eq!(
            decide(RpcClass::Mutation, kind, Outcome::NotSent),
            RetryDecision::NextMember
        );
    }
}

#[test]
fn etcd_errors_lead_to_decisions() {
    use RetryDecision::{Backoff, Fail, NextMember, RenewToken};
    for (code, message, read, write) in [
        (
            Code::Unavailable,
            "etcdserver: no leader",
            NextMember,
            NextMember,
        ),
        (
            Code::Unknown,
            "etcdserver: too many requests",
            Backoff,
            Backoff,
        ),
        (
            Code::Unknown,
            "raft proposal dropped",
            NextMember,
            NextMember,
        ),
        (
            Code::Unauthenticated,
            "etcdserver: invalid auth token",
            RenewToken,
            RenewToken,
        ),
        (
            Code::Unavailable,
            "etcdserver: request timed out",
            NextMember,
            Fail,
        ),
        (
            Code::Unavailable,
            "etcdserver: leader changed",
            NextMember,
            Fail,
        ),
        (Code::Unavailable, "never seen before", NextMember, Fail),
        (Code::Unknown, "context deadline exceeded", NextMember, Fail),
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
            decision_after(RpcClass::Read, code, message),
            read,
            "read: {message}"
        );
        assert_eq!(
            decision_after(RpcClass::Mutation, code, message),
            write,
            "write: {message}"
        );
    }
}

#[test]
fn repeatable_requests_are_decided_by_the_error() {
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
fn other_success_needs_an_unknown_attempt() {
    assert!(shows_other_success(
        RpcClass::Grant,
        ErrorKind::LeaseExists,
        true
    ));
    assert!(shows_other_success(
        RpcClass::Revoke,
        ErrorKind::LeaseNotFound,
        true
    ));
    assert!(!shows_other_success(
        RpcClass::Grant,
        ErrorKind::LeaseExists,
        false
    ));
    assert!(!shows_other_success(
        RpcClass::Revoke,
        ErrorKind::LeaseNotFound,
        false
    ));
    assert!(!shows_other_success(
        RpcClass::Mutation,
        ErrorKind::LeaseExists,
        true
    ));
    assert!(!shows_other_success(
        RpcClass::Grant,
        ErrorKind::LeaseNotFound,
        true
    ));
}

#[test]
fn unknown_attempt_makes_the_call_unknown() {
    for last in OUTCOMES {
        assert_eq!(outcome_of_call(last, true), Outcome::Unknown);
        assert_eq!(outcome_of_call(last, false), last);
    }
}

#[test]
fn transient_kinds_are_those_with_a_remedy() {
    for &kind in ErrorKind::ALL {
        let ended = matches!(kind, ErrorKind::DeadlineExceeded | ErrorKind::Overloaded);
        let has_remedy = remedy(kind) != RetryDecision::Fail;
        assert_eq!(kind.is_transient(), has_remedy || ended, "{kind:?}");
    }
}
