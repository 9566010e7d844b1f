//! Class of RPC × class of error → decision: the one place that says what may be tried again.

use crate::{
    error::{ErrorKind, Outcome},
    proto::rpc::RpcClass,
};

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
mod tests;
