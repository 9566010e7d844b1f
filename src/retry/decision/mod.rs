//! The standard decision for each RPC class and error. The only place that decides whether a request may be retried.

use std::time::Duration;

use crate::{
    error::{ErrorKind, Outcome},
    proto::rpc::{RpcClass, SplitRejection},
};

/// Whether and how a failed request is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryDecision {
    /// Retry on another member: at once until a quorum of members has failed, then after a growing delay.
    NextMember,
    /// Retry after a growing delay: other members would fail, too.
    Backoff,
    /// Renew the token, then retry.
    RenewToken,
    /// Retry after this delay.
    After(Duration),
    /// Return the error to the caller.
    Fail,
}

/// Returns the standard decision. A write whose outcome is unknown is never retried, whatever the error.
pub(crate) fn decide(class: RpcClass, kind: ErrorKind, outcome: Outcome) -> RetryDecision {
    if may_repeat(class, outcome) {
        remedy(kind)
    } else {
        RetryDecision::Fail
    }
}

/// Returns whether sending the request again is safe. No policy can override it.
pub(crate) fn may_repeat(class: RpcClass, outcome: Outcome) -> bool {
    match class {
        RpcClass::Read | RpcClass::Idempotent | RpcClass::Grant | RpcClass::Revoke => true,
        RpcClass::Mutation => match outcome {
            Outcome::NotSent | Outcome::Rejected => true,
            Outcome::Unknown => false,
        },
    }
}

/// Returns whether other members may have applied a transaction that one member rejected with this error.
pub(crate) fn may_be_split(split: SplitRejection, kind: ErrorKind) -> bool {
    match split {
        SplitRejection::None => false,
        SplitRejection::Permission => kind == ErrorKind::PermissionDenied,
        SplitRejection::UserOrPermission => matches!(
            kind,
            ErrorKind::PermissionDenied | ErrorKind::UserEmpty | ErrorKind::AuthOldRevision
        ),
    }
}

/// Returns whether an error shows that *another* attempt of the same call, whose outcome is unknown, succeeded: the
/// lease with the chosen id exists, or the lease to revoke is gone.
pub(crate) fn shows_other_success(class: RpcClass, kind: ErrorKind, other_unknown: bool) -> bool {
    other_unknown
        && matches!(
            (class, kind),
            (RpcClass::Grant, ErrorKind::LeaseExists)
                | (RpcClass::Revoke, ErrorKind::LeaseNotFound)
        )
}

/// Returns the outcome of a call with several attempts: one unknown attempt makes the whole call unknown, even if the
/// last one was rejected or not sent.
pub(crate) fn outcome_of_call(last: Outcome, earlier_unknown: bool) -> Outcome {
    if earlier_unknown {
        Outcome::Unknown
    } else {
        last
    }
}

/// Returns the decision for a kind of error if sending the request again is safe.
#[expect(clippy::too_many_lines, reason = "one line per kind")]
pub(crate) fn remedy(kind: ErrorKind) -> RetryDecision {
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
        | ErrorKind::StaleRead
        // A proxy in front of one member responded with 502 or 503.
        | ErrorKind::Protocol => RetryDecision::NextMember,

        ErrorKind::TooManyRequests
        | ErrorKind::Unavailable
        // An actor of the client that crashed restarts in a moment.
        | ErrorKind::Internal => RetryDecision::Backoff,

        ErrorKind::InvalidAuthToken | ErrorKind::AuthOldRevision | ErrorKind::UserEmpty => {
            RetryDecision::RenewToken
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
        | ErrorKind::RevisionRegressed
        | ErrorKind::MixedClusters
        | ErrorKind::OldCluster
        | ErrorKind::ResponseTooLarge
        | ErrorKind::TlsFailed
        | ErrorKind::CredentialsUnavailable
        | ErrorKind::SessionLost
        | ErrorKind::LockLost
        | ErrorKind::LockBlocked
        | ErrorKind::BarrierFull
        | ErrorKind::NoElectionLeader
        | ErrorKind::MarkersDenied
        | ErrorKind::Conflict
        | ErrorKind::FileFailed
        | ErrorKind::CheckpointMismatch
        | ErrorKind::CheckpointTaken
        | ErrorKind::DestinationNotEmpty
        | ErrorKind::CodecFailed
        | ErrorKind::CacheTooLarge
        | ErrorKind::ConfigRejected
        | ErrorKind::Other => RetryDecision::Fail,
    }
}

#[cfg(test)]
mod tests;
