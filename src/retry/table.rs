//! Class of RPC × class of error → decision: the one place that says what may be tried again.

use crate::error::{ErrorKind, Outcome};

/// What making a request twice would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RpcClass {
    /// Changes nothing: a range, a read-only transaction, a status, a list of members.
    Read,
    /// Changes something, but twice is the same as once: authenticate, disarm an alarm.
    Idempotent,
    /// A lease granted under an id that this client drew at random. A grant under an id the *user* chose is a
    /// [`Mutation`](Self::Mutation): "exists already" would not tell whose it is.
    Grant,
    /// A lease revoked.
    Revoke,
    /// Everything else that changes something: twice is not once.
    Mutation,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Try again, at this pace.
    Retry(Pace),
    /// Get a new token first, then try again at once.
    Refresh,
    /// Tell the caller.
    Fail,
}

/// Where and how fast to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Another member may do better: go there at once, wait only when a quorum has failed.
    NextMember,
    /// Other members would do no better now: wait first.
    Backoff,
}

/// How an error passes, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// It is this member's trouble.
    Elsewhere,
    /// It is everybody's trouble, for now.
    Later,
    /// A new token helps.
    WithToken,
    /// The same request fails in the same way.
    Never,
}

/// The table. A write whose outcome is unknown is never tried again, whatever the error.
pub(crate) fn decide(class: RpcClass, kind: ErrorKind, outcome: Outcome) -> Decision {
    if !may_repeat(class, outcome) {
        return Decision::Fail;
    }
    match passing(kind) {
        Passing::Elsewhere => Decision::Retry(Pace::NextMember),
        Passing::Later => Decision::Retry(Pace::Backoff),
        Passing::WithToken => Decision::Refresh,
        Passing::Never => Decision::Fail,
    }
}

/// Whether sending the request once more can do no harm. No policy gets around this.
pub(crate) fn may_repeat(class: RpcClass, outcome: Outcome) -> bool {
    match class {
        RpcClass::Read | RpcClass::Idempotent | RpcClass::Grant | RpcClass::Revoke => true,
        RpcClass::Mutation => match outcome {
            Outcome::NotSent | Outcome::Rejected => true,
            Outcome::Unknown => false,
        },
    }
}

/// Whether an error says that an *earlier* attempt of this call, whose outcome was unknown, did the work: the lease of
/// our id exists, or the lease to revoke is gone.
pub(crate) fn counts_as_done(class: RpcClass, kind: ErrorKind, earlier_unknown: bool) -> bool {
    earlier_unknown
        && matches!(
            (class, kind),
            (RpcClass::Grant, ErrorKind::LeaseExists)
                | (RpcClass::Revoke, ErrorKind::LeaseNotFound)
        )
}

/// What a call that made several attempts has to say: one unknown attempt makes the whole call unknown, even if the
/// last was refused or never sent.
pub(crate) fn outcome_of_call(last: Outcome, earlier_unknown: bool) -> Outcome {
    if earlier_unknown {
        Outcome::Unknown
    } else {
        last
    }
}

/// How each kind of error passes.
pub(crate) fn passing(kind: ErrorKind) -> Passing {
    match kind {
        ErrorKind::NoLeader
        | ErrorKind::NotSupportedForLearner
        | ErrorKind::LeaderChanged
        | ErrorKind::Stopped
        | ErrorKind::Timeout
        | ErrorKind::TimeoutDueToLeaderFailure
        | ErrorKind::TimeoutDueToConnectionLost
        | ErrorKind::TimeoutWaitingForApply
        | ErrorKind::ProposalDropped
        | ErrorKind::NotPrimaryLessor
        | ErrorKind::ServerCanceled
        | ErrorKind::ServerDeadlineExceeded
        | ErrorKind::ServerUnavailable
        | ErrorKind::ConnectionLost
        | ErrorKind::MemberUnresponsive
        | ErrorKind::NotServing
        | ErrorKind::LeaderLost
        // A proxy before one member that answers 502 or 503.
        | ErrorKind::Protocol => Passing::Elsewhere,

        ErrorKind::TooManyRequests
        | ErrorKind::Unavailable
        // A part of the client that crashed is back in a moment.
        | ErrorKind::Internal => Passing::Later,

        ErrorKind::InvalidAuthToken | ErrorKind::AuthOldRevision | ErrorKind::UserEmpty => {
            Passing::WithToken
        }

        ErrorKind::EmptyKey
        | ErrorKind::KeyNotFound
        | ErrorKind::ValueProvided
        | ErrorKind::LeaseProvided
        | ErrorKind::TooManyOps
        | ErrorKind::DuplicateKey
        | ErrorKind::InvalidClientApiVersion
        | ErrorKind::InvalidSortOption
        | ErrorKind::Compacted
        | ErrorKind::FutureRevision
        | ErrorKind::NoSpace
        | ErrorKind::RequestTooLarge
        | ErrorKind::LeaseNotFound
        | ErrorKind::LeaseExists
        | ErrorKind::LeaseTtlTooLarge
        | ErrorKind::WatchCanceled
        | ErrorKind::MemberExists
        | ErrorKind::PeerUrlExists
        | ErrorKind::MemberNotEnoughStarted
        | ErrorKind::MemberBadUrls
        | ErrorKind::MemberNotFound
        | ErrorKind::MemberNotLearner
        | ErrorKind::LearnerNotReady
        | ErrorKind::TooManyLearners
        | ErrorKind::ClusterIdMismatch
        | ErrorKind::BadLeaderTransferee
        | ErrorKind::Unhealthy
        | ErrorKind::Corrupt
        | ErrorKind::RootUserNotExist
        | ErrorKind::RootRoleNotExist
        | ErrorKind::UserAlreadyExists
        | ErrorKind::UserNotFound
        | ErrorKind::RoleAlreadyExists
        | ErrorKind::RoleNotFound
        | ErrorKind::RoleEmpty
        | ErrorKind::AuthFailed
        | ErrorKind::PermissionNotGiven
        | ErrorKind::PermissionDenied
        | ErrorKind::RoleNotGranted
        | ErrorKind::PermissionNotGranted
        | ErrorKind::AuthNotEnabled
        | ErrorKind::InvalidAuthManagement
        | ErrorKind::NotLeader
        | ErrorKind::NotCapable
        | ErrorKind::Unimplemented
        | ErrorKind::WrongDowngradeVersionFormat
        | ErrorKind::InvalidDowngradeTargetVersion
        | ErrorKind::ClusterVersionUnavailable
        | ErrorKind::DowngradeInProcess
        | ErrorKind::NoInflightDowngrade
        | ErrorKind::InvalidArgument
        | ErrorKind::InvalidEndpoint
        | ErrorKind::NoEndpoints
        | ErrorKind::DeadlineExceeded
        | ErrorKind::Overloaded
        | ErrorKind::Shutdown
        | ErrorKind::ClusterChanged
        | ErrorKind::OldCluster
        | ErrorKind::ResponseTooLarge
        | ErrorKind::TlsFailed
        | ErrorKind::CredentialsUnavailable
        | ErrorKind::SessionLost
        | ErrorKind::LockLost
        | ErrorKind::FileFailed
        | ErrorKind::Other => Passing::Never,
    }
}

#[cfg(test)]
mod tests {
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
}
