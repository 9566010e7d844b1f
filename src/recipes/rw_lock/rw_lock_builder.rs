//! Opens a read-write lock with a session of its own.

use std::{future::IntoFuture, time::Duration};

use super::RwLock;
use crate::{
    client::Client,
    error::Result,
    recipes::lock_queue::{QueueBuilder, QueueRule},
    request::{IntoBytes, ResponseFuture},
};

impl Client {
    /// Opens a read-write lock with a session of its own.
    ///
    /// The session heals: if an outage costs its lease, locks that are held are lost, but requests that wait continue
    /// with the new lease, and a new request works without a restart. The session ends when the lock, its clones, its
    /// requests and its guards are dropped.
    pub fn rw_lock(&self, name: impl IntoBytes) -> RwLockBuilder {
        RwLockBuilder {
            queue: QueueBuilder::new(self, name.into_bytes()),
        }
    }
}

/// Opens an [`RwLock`] with a session of its own when awaited. Made by [`Client::rw_lock`].
///
/// Fails if the lease of the session cannot be granted within the client's `request_timeout`, and with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes.
#[derive(Debug, Clone)]
#[must_use = "the lock is opened when this is awaited"]
pub struct RwLockBuilder {
    queue: QueueBuilder,
}

impl RwLockBuilder {
    /// Sets the TTL of the lease: how long after a crash of a holder the next one can get the lock. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.queue = self.queue.ttl(ttl);
        self
    }
}

impl IntoFuture for RwLockBuilder {
    type Output = Result<RwLock>;
    type IntoFuture = ResponseFuture<RwLock>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let queue = self.queue.open(QueueRule::Write).await?;
            Ok(RwLock { queue })
        })
    }
}
