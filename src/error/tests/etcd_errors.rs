//! Every error of etcd: code, message, and the expected kind, outcome and retry. Unit tests compare decisions with this
//! table, and integration tests compare the errors that callers receive.

use super::{Code, ErrorKind as K, Outcome};

/// Which requests are retried after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// None: the same request fails again.
    Never,
    /// Reads.
    Reads,
    /// Reads and writes: the error proves that nothing was applied, and is transient.
    Always,
    /// Reads and writes, with a new token.
    WithToken,
}

use Outcome::{Rejected, Unknown};
use Retried::{Always, Never, Reads, WithToken};

/// Code, message, kind, outcome of a write, retried requests.
pub type Row = (Code, &'static str, K, Outcome, Retried);

/// Number of leading rows that each have a kind of their own.
pub const NAMED: usize = 63;

#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    (Code::InvalidArgument, "etcdserver: key is not provided", K::EmptyKey, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: key not found", K::KeyNotFound, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: value is provided", K::ValueProvided, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: lease is provided", K::LeaseProvided, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: too many operations in txn request", K::TooManyOps, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", K::DuplicateKey, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: invalid client api version", K::InvalidClientApiVersion, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: invalid sort option", K::InvalidSortOption, Rejected, Never),
    (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", K::Compacted, Rejected, Never),
    (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", K::FutureRevision, Rejected, Never),
    (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", K::NoSpace, Unknown, Never),
    (Code::NotFound, "etcdserver: requested lease not found", K::LeaseNotFound, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: lease already exists", K::LeaseExists, Rejected, Never),
    (Code::OutOfRange, "etcdserver: too large lease TTL", K::LeaseTtlTooLarge, Rejected, Never),
    (Code::Cancelled, "etcdserver: watch canceled", K::WatchCanceled, Unknown, Never),
    (Code::FailedPrecondition, "etcdserver: member ID already exist", K::MemberExists, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: Peer URLs already exists", K::PeerUrlExists, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members", K::MemberNotEnoughStarted, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: given member URLs are invalid", K::MemberBadUrls, Rejected, Never),
    (Code::NotFound, "etcdserver: member not found", K::MemberNotFound, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: can only promote a learner member", K::MemberNotLearner, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader", K::LearnerNotReady, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: too many learner members in cluster", K::TooManyLearners, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: cluster ID mismatch", K::ClusterIdMismatch, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: request is too large", K::RequestTooLarge, Rejected, Never),
    (Code::ResourceExhausted, "etcdserver: too many requests", K::TooManyRequests, Rejected, Always),
    (Code::FailedPrecondition, "etcdserver: root user does not exist", K::RootUserNotExist, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: root user does not have root role", K::RootRoleNotExist, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: user name already exists", K::UserAlreadyExists, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: user name is empty", K::UserEmpty, Rejected, WithToken),
    (Code::FailedPrecondition, "etcdserver: user name not found", K::UserNotFound, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: role name already exists", K::RoleAlreadyExists, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: role name not found", K::RoleNotFound, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: role name is empty", K::RoleEmpty, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", K::AuthFailed, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: permission not given", K::PermissionNotGiven, Rejected, Never),
    (Code::PermissionDenied, "etcdserver: permission denied", K::PermissionDenied, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: role is not granted to the user", K::RoleNotGranted, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: permission is not granted to the role", K::PermissionNotGranted, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: authentication is not enabled", K::AuthNotEnabled, Rejected, Never),
    (Code::Unauthenticated, "etcdserver: invalid auth token", K::InvalidAuthToken, Rejected, WithToken),
    (Code::InvalidArgument, "etcdserver: invalid auth management", K::InvalidAuthManagement, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: revision of auth store is old", K::AuthOldRevision, Rejected, WithToken),
    (Code::Unavailable, "etcdserver: no leader", K::NoLeader, Rejected, Always),
    (Code::FailedPrecondition, "etcdserver: not leader", K::NotLeader, Rejected, Never),
    (Code::Unavailable, "etcdserver: leader changed", K::LeaderChanged, Unknown, Reads),
    (Code::FailedPrecondition, "etcdserver: not capable", K::NotCapable, Rejected, Never),
    (Code::Unavailable, "etcdserver: server stopped", K::Stopped, Unknown, Reads),
    (Code::Unavailable, "etcdserver: request timed out", K::Timeout, Unknown, Reads),
    (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure", K::TimeoutDueToLeaderFailure, Unknown, Reads),
    (Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost", K::TimeoutDueToConnectionLost, Unknown, Reads),
    (Code::Unavailable, "etcdserver: request timed out, waiting for the applied index took too long", K::TimeoutWaitingForApply, Unknown, Reads),
    (Code::Unavailable, "etcdserver: unhealthy cluster", K::Unhealthy, Rejected, Never),
    (Code::DataLoss, "etcdserver: corrupt cluster", K::Corrupt, Unknown, Never),
    (Code::FailedPrecondition, "etcdserver: rpc not supported for learner", K::NotSupportedForLearner, Rejected, Always),
    (Code::FailedPrecondition, "etcdserver: bad leader transferee", K::BadLeaderTransferee, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: wrong downgrade target version format", K::WrongDowngradeVersionFormat, Rejected, Never),
    (Code::InvalidArgument, "etcdserver: invalid downgrade target version", K::InvalidDowngradeTargetVersion, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: cluster version not found during downgrade", K::ClusterVersionUnavailable, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: cluster has a downgrade job in progress", K::DowngradeInProcess, Rejected, Never),
    (Code::FailedPrecondition, "etcdserver: no inflight downgrade job", K::NoInflightDowngrade, Rejected, Never),
    (Code::Cancelled, "etcdserver: request canceled", K::ServerCanceled, Unknown, Reads),
    (Code::DeadlineExceeded, "etcdserver: context deadline exceeded", K::ServerDeadlineExceeded, Unknown, Reads),
    // Errors that etcd does not map to gRPC errors, as seen on the wire.
    (Code::Unknown, "etcdserver: too many requests", K::TooManyRequests, Rejected, Always),
    (Code::Unknown, "raft proposal dropped", K::ProposalDropped, Rejected, Always),
    (Code::Unknown, "not a primary lessor", K::NotPrimaryLessor, Unknown, Reads),
    (Code::Unknown, "context deadline exceeded", K::ServerDeadlineExceeded, Unknown, Reads),
    (Code::Unknown, "mvcc: required revision has been compacted", K::Compacted, Rejected, Never),
    (Code::Unknown, "raft: stopped", K::Stopped, Unknown, Reads),
    (Code::Unknown, "auth: invalid auth token", K::InvalidAuthToken, Rejected, WithToken),
    (Code::Unknown, "auth: permission denied", K::PermissionDenied, Rejected, Never),
    (Code::Unknown, "auth: user name is empty", K::UserEmpty, Rejected, WithToken),
    (Code::Unknown, "auth: revision in header is old", K::AuthOldRevision, Rejected, WithToken),
    (Code::Unknown, "auth: authentication failed, password was given for no password user", K::AuthFailed, Rejected, Never),
    (Code::Unknown, "election: no leader", K::NoElectionLeader, Rejected, Never),
    (Code::Unknown, "election: not leader", K::LockLost, Rejected, Never),
    (Code::ResourceExhausted, "grpc: trying to send message larger than max (3145736 vs. 2097152)", K::ResponseTooLarge, Unknown, Never),
];
