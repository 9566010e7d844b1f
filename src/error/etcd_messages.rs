//! The meaning of etcd's error responses: a table of messages, and what each kind proves about a write.
//!
//! The message determines the kind, as in etcd's own clients: the code on the wire differs between versions, and is not
//! always the documented one (`too many requests` has the code `Unknown`).

use super::{Code, ErrorKind, Outcome};

/// Message → kind. Messages without `etcdserver: ` come from errors that etcd does not map to gRPC errors.
#[rustfmt::skip]
const MESSAGES: &[(&str, ErrorKind)] = &[
    ("etcdserver: key is not provided", ErrorKind::EmptyKey),
    ("etcdserver: key not found", ErrorKind::KeyNotFound),
    ("etcdserver: value is provided", ErrorKind::ValueProvided),
    ("etcdserver: lease is provided", ErrorKind::LeaseProvided),
    ("etcdserver: too many operations in txn request", ErrorKind::TooManyOps),
    ("etcdserver: duplicate key given in txn request", ErrorKind::DuplicateKey),
    ("etcdserver: invalid client api version", ErrorKind::InvalidClientApiVersion),
    ("etcdserver: invalid sort option", ErrorKind::InvalidSortOption),
    ("etcdserver: mvcc: required revision has been compacted", ErrorKind::Compacted),
    ("etcdserver: mvcc: required revision is a future revision", ErrorKind::FutureRevision),
    ("etcdserver: mvcc: database space exceeded", ErrorKind::NoSpace),
    ("etcdserver: no space", ErrorKind::NoSpace),
    ("etcdserver: requested lease not found", ErrorKind::LeaseNotFound),
    ("lease not found", ErrorKind::LeaseNotFound),
    ("etcdserver: lease already exists", ErrorKind::LeaseExists),
    ("etcdserver: too large lease TTL", ErrorKind::LeaseTtlTooLarge),
    ("not a primary lessor", ErrorKind::NotPrimaryLessor),
    ("etcdserver: watch canceled", ErrorKind::WatchCanceled),
    ("etcdserver: member ID already exist", ErrorKind::MemberExists),
    ("etcdserver: Peer URLs already exists", ErrorKind::PeerUrlExists),
    ("etcdserver: re-configuration failed due to not enough started members", ErrorKind::MemberNotEnoughStarted),
    ("etcdserver: given member URLs are invalid", ErrorKind::MemberBadUrls),
    ("etcdserver: member not found", ErrorKind::MemberNotFound),
    ("etcdserver: can only promote a learner member", ErrorKind::MemberNotLearner),
    ("etcdserver: can only promote a learner member which is in sync with leader", ErrorKind::LearnerNotReady),
    ("etcdserver: too many learner members in cluster", ErrorKind::TooManyLearners),
    ("etcdserver: cluster ID mismatch", ErrorKind::ClusterIdMismatch),
    ("etcdserver: request is too large", ErrorKind::RequestTooLarge),
    ("etcdserver: too many requests", ErrorKind::TooManyRequests),
    ("etcdserver: root user does not exist", ErrorKind::RootUserNotExist),
    ("etcdserver: root user does not have root role", ErrorKind::RootRoleNotExist),
    ("etcdserver: user name already exists", ErrorKind::UserAlreadyExists),
    ("etcdserver: user name is empty", ErrorKind::UserEmpty),
    ("etcdserver: user name not found", ErrorKind::UserNotFound),
    ("etcdserver: role name already exists", ErrorKind::RoleAlreadyExists),
    ("etcdserver: role name not found", ErrorKind::RoleNotFound),
    ("etcdserver: role name is empty", ErrorKind::RoleEmpty),
    ("etcdserver: authentication failed, invalid user ID or password", ErrorKind::AuthFailed),
    ("etcdserver: permission not given", ErrorKind::PermissionNotGiven),
    ("etcdserver: permission denied", ErrorKind::PermissionDenied),
    ("etcdserver: role is not granted to the user", ErrorKind::RoleNotGranted),
    ("etcdserver: permission is not granted to the role", ErrorKind::PermissionNotGranted),
    ("etcdserver: authentication is not enabled", ErrorKind::AuthNotEnabled),
    ("etcdserver: invalid auth token", ErrorKind::InvalidAuthToken),
    ("etcdserver: invalid auth management", ErrorKind::InvalidAuthManagement),
    ("etcdserver: revision of auth store is old", ErrorKind::AuthOldRevision),
    ("etcdserver: no leader", ErrorKind::NoLeader),
    ("etcdserver: not leader", ErrorKind::NotLeader),
    ("etcdserver: leader changed", ErrorKind::LeaderChanged),
    ("etcdserver: not capable", ErrorKind::NotCapable),
    ("etcdserver: server stopped", ErrorKind::Stopped),
    ("raft: stopped", ErrorKind::Stopped),
    ("etcdserver: request timed out", ErrorKind::Timeout),
    ("etcdserver: request timed out, possibly due to previous leader failure", ErrorKind::TimeoutDueToLeaderFailure),
    ("etcdserver: request timed out, possibly due to connection lost", ErrorKind::TimeoutDueToConnectionLost),
    ("etcdserver: request timed out, waiting for the applied index took too long", ErrorKind::TimeoutWaitingForApply),
    ("etcdserver: unhealthy cluster", ErrorKind::Unhealthy),
    ("etcdserver: corrupt cluster", ErrorKind::Corrupt),
    ("etcdserver: rpc not supported for learner", ErrorKind::NotSupportedForLearner),
    ("etcdserver: bad leader transferee", ErrorKind::BadLeaderTransferee),
    ("etcdserver: wrong downgrade target version format", ErrorKind::WrongDowngradeVersionFormat),
    ("etcdserver: invalid downgrade target version", ErrorKind::InvalidDowngradeTargetVersion),
    ("etcdserver: cluster version not found during downgrade", ErrorKind::ClusterVersionUnavailable),
    ("etcdserver: cluster has a downgrade job in progress", ErrorKind::DowngradeInProcess),
    ("etcdserver: no inflight downgrade job", ErrorKind::NoInflightDowngrade),
    ("etcdserver: request canceled", ErrorKind::ServerCanceled),
    ("context canceled", ErrorKind::ServerCanceled),
    ("etcdserver: context deadline exceeded", ErrorKind::ServerDeadlineExceeded),
    ("context deadline exceeded", ErrorKind::ServerDeadlineExceeded),
    ("raft proposal dropped", ErrorKind::ProposalDropped),
    // Snapshot, defragment, hash and hash_kv of etcd 3.4 and 3.5.
    ("auth: invalid auth token", ErrorKind::InvalidAuthToken),
    ("auth: permission denied", ErrorKind::PermissionDenied),
    ("auth: user name is empty", ErrorKind::UserEmpty),
    ("auth: revision in header is old", ErrorKind::AuthOldRevision),
    // A login of a user without a password.
    ("auth: authentication failed, password was given for no password user", ErrorKind::AuthFailed),
    // The server's election service.
    ("election: no leader", ErrorKind::NoElectionLeader),
    ("election: not leader", ErrorKind::LockLost),
];

/// Removes every leading `rpc error: code = X desc = `. etcd leaves this prefix in the reasons of cancelled watches,
/// and a proxy adds it again.
pub(crate) fn strip_rpc_prefix(message: &str) -> &str {
    let mut rest = message.trim();
    while let Some((_, text)) = rest
        .strip_prefix("rpc error: code = ")
        .and_then(|r| r.split_once(" desc = "))
    {
        rest = text.trim_start();
    }
    rest
}

/// Message of gRPC's Go library about a message that it received, followed by sizes: `(2097153 vs. 2097152)`. A server
/// returns it for a request, a proxy also for a response of the server behind it.
const GRPC_TOO_LARGE: &str = "grpc: received message larger than max";
/// Messages of gRPC's Go library about responses. Requests of this client are never compressed.
const GRPC_RESPONSE_TOO_LARGE: [&str; 2] = [
    "grpc: trying to send message larger than max",
    "grpc: received message after decompression larger than max",
];

/// Returns whether gRPC's message about a size limit concerns a message of another size than the request's.
pub(super) fn concerns_other_size(message: &str, request_size: usize) -> bool {
    let Some(sizes) = message.strip_prefix(GRPC_TOO_LARGE) else {
        return false;
    };
    let sizes = sizes.trim_start().strip_prefix('(');
    let size = sizes.and_then(|sizes| sizes.split_once(" vs. "));
    !size.is_some_and(|(size, _)| size.parse() == Ok(request_size))
}

/// Returns the kind of a message, with or without etcd's prefixes.
pub(crate) fn kind_of_message(message: &str) -> Option<ErrorKind> {
    let bare = strip_rpc_prefix(message);
    if bare.starts_with(GRPC_TOO_LARGE) {
        return Some(ErrorKind::RequestTooLarge);
    }
    if GRPC_RESPONSE_TOO_LARGE
        .iter()
        .any(|text| bare.starts_with(text))
    {
        return Some(ErrorKind::ResponseTooLarge);
    }
    let found = |matches: &dyn Fn(&str) -> bool| {
        MESSAGES
            .iter()
            .find(|(text, _)| matches(text))
            .map(|(_, kind)| *kind)
    };
    found(&|text| text == bare)
        // Cancel reasons of watches contain storage errors as `mvcc: …`, without the prefix.
        .or_else(|| found(&|text| text.strip_prefix("etcdserver: ") == Some(bare)))
}

/// Classifies a response with an unknown message by its code.
pub(super) const fn classify_code(code: Code) -> (ErrorKind, Outcome) {
    match code {
        // gRPC defines these as rejections before any effect.
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unauthenticated => (ErrorKind::Other, Outcome::Rejected),
        Code::Unimplemented => (ErrorKind::Unimplemented, Outcome::Rejected),
        Code::DeadlineExceeded => (ErrorKind::ServerDeadlineExceeded, Outcome::Unknown),
        Code::Cancelled => (ErrorKind::ServerCanceled, Outcome::Unknown),
        Code::Unavailable => (ErrorKind::ServerUnavailable, Outcome::Unknown),
        // An error with code `Ok` proves nothing about the write.
        Code::Ok
        | Code::Unknown
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss => (ErrorKind::Other, Outcome::Unknown),
    }
}

impl ErrorKind {
    /// Returns what a response of this kind proves about a write.
    #[expect(clippy::too_many_lines, reason = "one line per kind")]
    pub(crate) const fn outcome_of_response(self) -> Outcome {
        match self {
            // Rejected before the raft proposal, or when it was applied, before anything changed.
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOps
            | Self::DuplicateKey
            | Self::InvalidClientApiVersion
            | Self::InvalidSortOption
            | Self::Compacted
            | Self::FutureRevision
            | Self::RequestTooLarge
            | Self::TooManyRequests
            | Self::LeaseNotFound
            | Self::LeaseExists
            | Self::LeaseTtlTooLarge
            | Self::MemberExists
            | Self::PeerUrlExists
            | Self::MemberNotEnoughStarted
            | Self::MemberBadUrls
            | Self::MemberNotFound
            | Self::MemberNotLearner
            | Self::LearnerNotReady
            | Self::TooManyLearners
            | Self::ClusterIdMismatch
            | Self::NotSupportedForLearner
            | Self::BadLeaderTransferee
            | Self::Unhealthy
            | Self::RootUserNotExist
            | Self::RootRoleNotExist
            | Self::UserAlreadyExists
            | Self::UserEmpty
            | Self::UserNotFound
            | Self::RoleAlreadyExists
            | Self::RoleNotFound
            | Self::RoleEmpty
            | Self::AuthFailed
            | Self::PermissionNotGiven
            | Self::PermissionDenied
            | Self::RoleNotGranted
            | Self::PermissionNotGranted
            | Self::AuthNotEnabled
            | Self::InvalidAuthToken
            | Self::InvalidAuthManagement
            | Self::AuthOldRevision
            | Self::NoLeader
            | Self::NotLeader
            | Self::NotCapable
            | Self::ProposalDropped
            | Self::Unimplemented
            | Self::WrongDowngradeVersionFormat
            | Self::InvalidDowngradeTargetVersion
            | Self::ClusterVersionUnavailable
            | Self::DowngradeInProcess
            | Self::NoInflightDowngrade
            | Self::NoElectionLeader
            | Self::LockLost => Outcome::Rejected,

            // The write that crosses the quota is applied *and* fails with NoSpace; later writes are rejected.
            Self::NoSpace
            // Members that disagree may have applied the write on one and rejected it on another.
            | Self::Corrupt
            // Returned for reads and lease renewals only; they prove nothing about a write.
            | Self::NotPrimaryLessor
            | Self::LeaderChanged
            | Self::WatchCanceled
            | Self::Stopped
            | Self::Timeout
            | Self::TimeoutDueToLeaderFailure
            | Self::TimeoutDueToConnectionLost
            | Self::TimeoutWaitingForApply
            | Self::ServerCanceled
            | Self::ServerDeadlineExceeded
            | Self::ServerUnavailable
            // Errors of the client itself are not responses and prove nothing.
            | Self::InvalidArgument
            | Self::InvalidEndpoint
            | Self::NoEndpoints
            | Self::Unavailable
            | Self::ConnectionLost
            | Self::MemberUnresponsive
            | Self::NotServing
            | Self::LeaderLost
            | Self::DeadlineExceeded
            | Self::Overloaded
            | Self::Shutdown
            | Self::ClusterChanged
            | Self::RevisionRegressed
            | Self::StaleRead
            | Self::MixedClusters
            | Self::OldCluster
            | Self::ResponseTooLarge
            | Self::Protocol
            | Self::TlsFailed
            | Self::CredentialsUnavailable
            | Self::SessionLost
            | Self::LockBlocked
            | Self::BarrierFull
            | Self::MarkersDenied
            | Self::Conflict
            | Self::FileFailed
            | Self::CheckpointMismatch
            | Self::CheckpointTaken
            | Self::DestinationNotEmpty
            | Self::CodecFailed
            | Self::CacheTooLarge
            | Self::ConfigRejected
            | Self::Internal
            | Self::Other => Outcome::Unknown,
        }
    }
}
