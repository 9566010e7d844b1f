//! Messages to the keeper.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Message;
use tokio::sync::oneshot;

use crate::{
    error::Error,
    lease::engine::{
        deadline::Deadline,
        lease_cell::{LeaseCell, UndeliveredLease},
    },
};

/// Keep a lease alive until it is released.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepLease {
    pub(crate) lease: UndeliveredLease,
    pub(crate) deadline: Deadline,
    pub(crate) origin: LeaseOrigin,
}

/// Where a lease comes from. Decides what the keeper reports for an earlier lease with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseOrigin {
    /// Granted just now: the server no longer has the earlier lease.
    Granted,
    /// Adopted by its id: the earlier lease is the same one, under another handle.
    Adopted,
}

/// Register a lease without keeping it alive, so that the client's shutdown can revoke it, and so that it replaces an
/// earlier lease with the same id.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RegisterLease {
    pub(crate) cell: Arc<LeaseCell>,
}

/// Stop keeping a lease whose handle was dropped, and optionally revoke it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ReleaseLease {
    pub(crate) cell: Arc<LeaseCell>,
    pub(crate) revoke: bool,
}

/// Send one keepalive for a lease, which need not be kept.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RenewLeaseOnce {
    pub(crate) lease: i64,
    /// Whether to avoid the member that received the last keepalive.
    pub(crate) elsewhere: bool,
    pub(crate) response: oneshot::Sender<Result<OnceRenewal, Error>>,
}

/// The response to one keepalive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnceRenewal {
    /// In seconds. Zero or less: the lease does not exist.
    pub(crate) ttl: i64,
    /// When the keepalive was sent.
    pub(crate) sent_at: Instant,
}

/// Stop, after revoking the leases with `revoke_on_drop`.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeeperShutdown {
    /// Maximum time to wait for the revokes.
    pub(crate) timeout: Duration,
    /// Leases that are left to expire, because work under their locks has not stopped.
    pub(crate) keep: HashSet<i64>,
}

/// Lease actors queued keepalives, or scheduled a check before the keeper's timer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeptLeasesChanged;

/// Responses were received on a stream.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveResponsesReceived {
    pub(crate) stream: u64,
    /// Lease id and TTL in seconds.
    pub(crate) responses: Vec<(i64, i64)>,
}

/// A stream ended, or its connection became unhealthy.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveStreamEnded {
    pub(crate) stream: u64,
    pub(crate) error: Option<Error>,
}

/// The keeper's timer fired.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct KeeperTimerFired;

/// The wait for a ready member ended, or failed.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ReadyWaitEnded;

/// Make the actor of a lease panic.
#[cfg(feature = "test-faults")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashLease(pub(crate) i64);

/// Make the keeper panic when it is about to send keepalives.
#[cfg(feature = "test-faults")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashWhenDue;
