//! Opens a lock with a session of its own.

use std::{future::IntoFuture, time::Duration};

use super::Mutex;
use crate::{
    client::Client,
    error::Result,
    recipes::lock_queue::{QueueBuilder, QueueRule},
    request::{IntoBytes, ResponseFuture},
};

impl Client {
    /// Opens a lock with a session of its own.
    ///
    /// The session heals: if an outage costs its lease, a lock that is held is lost, but requests that wait continue
    /// with the new lease, and a new request works without a restart. The session ends when the lock, its clones, its
    /// requests and its guards are dropped.
    pub fn mutex(&self, name: impl IntoBytes) -> MutexBuilder {
        MutexBuilder {
            queue: QueueBuilder::new(self, name.into_bytes()),
        }
    }
}

/// Opens a [`Mutex`] with a session of its own when awaited. Made by [`Client::mutex`].
///
/// Fails if the lease of the session cannot be granted within the client's `request_timeout`, and with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes.
#[derive(Debug, Clone)]
#[must_use = "the lock is opened when this is awaited"]
pub struct MutexBuilder {
    queue: QueueBuilder,
}

impl MutexBuilder {
    /// Sets the TTL of the lease: how long after a crash of the owner another session can get the lock. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.queue = self.queue.ttl(ttl);
        self
    }
}

impl IntoFuture for MutexBuilder {
    type Output = Result<Mutex>;
    type IntoFuture = ResponseFuture<Mutex>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let queue = self.queue.open(QueueRule::Exclusive).await?;
            Ok(Mutex { queue })
        })
    }
}
