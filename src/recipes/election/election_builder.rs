//! Opens an election with a session of its own.

use std::{future::IntoFuture, time::Duration};

use super::{Election, LeaderStatus};
use crate::{
    client::Client,
    error::Result,
    recipes::lock_queue::{QueueBuilder, QueueRule},
    request::{IntoBytes, ResponseFuture},
};

impl Client {
    /// Opens an election with a session of its own, in which this client can be a candidate.
    ///
    /// The session heals: if an outage costs its lease, a leadership is lost, but campaigns that wait continue with the
    /// new lease, and a new campaign works without a restart. The session ends when the election, its clones, its
    /// campaigns and its leadership are dropped.
    pub fn election(&self, name: impl IntoBytes) -> ElectionBuilder {
        ElectionBuilder {
            queue: QueueBuilder::new(self, name.into_bytes()),
        }
    }
}

/// Opens an [`Election`] with a session of its own when awaited. Made by [`Client::election`].
///
/// Fails if the lease of the session cannot be granted within the client's `request_timeout`, and with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes.
#[derive(Debug, Clone)]
#[must_use = "the election is opened when this is awaited"]
pub struct ElectionBuilder {
    queue: QueueBuilder,
}

impl ElectionBuilder {
    /// Sets the TTL of the lease: how long after a crash of the leader another candidate can lead. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.queue = self.queue.ttl(ttl);
        self
    }
}

impl IntoFuture for ElectionBuilder {
    type Output = Result<Election>;
    type IntoFuture = ResponseFuture<Election>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let queue = self.queue.open(QueueRule::Exclusive).await?;
            Ok(Election {
                queue,
                status: LeaderStatus::default(),
            })
        })
    }
}
