//! Messages to the actor of one lease.

use std::time::Instant;

use actix::Message;

/// The next step of the lease is due.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveDue;

/// A response to the keepalive sent at `sent_at` was received.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveResponded {
    /// In seconds. Zero or less: the lease does not exist.
    pub(crate) ttl: i64,
    pub(crate) sent_at: Instant,
}

/// The stream of the keepalive sent at `sent_at` ended before the response.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveFailed {
    pub(crate) sent_at: Instant,
}

/// The server refused the keepalive to this user.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveDenied;

/// The client follows another cluster; the lease belongs to the previous one.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ClusterLeft;

/// Stop: the lease is kept no longer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StopKeeping;
