//! Opens a semaphore with a session of its own.

use std::{future::IntoFuture, time::Duration};

use super::Semaphore;
use crate::{
    client::Client,
    error::Result,
    recipes::lock_queue::{QueueBuilder, QueueRule},
    request::{IntoBytes, ResponseFuture},
};

impl Client {
    /// Opens a semaphore with this number of permits, and with a session of its own.
    ///
    /// The session heals: if an outage costs its lease, permits that are held are lost, but requests that wait continue
    /// with the new lease, and a new request works without a restart. The session ends when the semaphore, its clones,
    /// its requests and its permits are dropped.
    pub fn semaphore(&self, name: impl IntoBytes, permits: u32) -> SemaphoreBuilder {
        SemaphoreBuilder {
            queue: QueueBuilder::new(self, name.into_bytes()),
            permits,
        }
    }
}

/// Opens a [`Semaphore`] with a session of its own when awaited. Made by [`Client::semaphore`].
///
/// Fails if the lease of the session cannot be granted within the client's `request_timeout`, and with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes, or if
/// the number of permits is zero.
#[derive(Debug, Clone)]
#[must_use = "the semaphore is opened when this is awaited"]
pub struct SemaphoreBuilder {
    queue: QueueBuilder,
    permits: u32,
}

impl SemaphoreBuilder {
    /// Sets the TTL of the lease: how long after a crash of a holder its permit is available again. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.queue = self.queue.ttl(ttl);
        self
    }
}

impl IntoFuture for SemaphoreBuilder {
    type Output = Result<Semaphore>;
    type IntoFuture = ResponseFuture<Semaphore>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let queue = self.queue.open(QueueRule::Permit(self.permits)).await?;
            Ok(Semaphore {
                queue,
                permits: self.permits,
            })
        })
    }
}
