//! The options of a queue with a session of its own, shared by all recipes with a queue.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{LockQueue, QueueKeys, QueueRule};
use crate::{client::Client, error::Result};

const DEFAULT_TTL: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(in crate::recipes) struct QueueBuilder {
    client: Client,
    name: Bytes,
    ttl: Duration,
}

impl QueueBuilder {
    pub(in crate::recipes) fn new(client: &Client, name: Bytes) -> Self {
        Self {
            client: client.clone(),
            name,
            ttl: DEFAULT_TTL,
        }
    }

    /// Sets the TTL of the session's lease. Default: 10 s.
    pub(in crate::recipes) fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Opens a session that heals, and that ends with the last clone of the queue and the last entry. Fails if the name
    /// or the rule is invalid, or if the lease of the session cannot be granted.
    pub(in crate::recipes) async fn open(self, rule: QueueRule) -> Result<LockQueue> {
        QueueKeys::new(&self.name, rule).check()?;
        // The session is part of the queue, also in background work. The queue's own client keeps the client running.
        let session = self.client.for_background().session(self.ttl);
        let session = session.heal().await?;
        let queue = LockQueue::new(&session, &self.name, rule);
        Ok(LockQueue {
            client: self.client,
            owned_session: Some(Arc::new(session)),
            ..queue
        })
    }
}
