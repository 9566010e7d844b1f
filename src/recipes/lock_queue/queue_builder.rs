//! The options of a queue with a session of its own, shared by locks and elections.

use std::time::Duration;

use bytes::Bytes;

use super::LockQueue;
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

    /// Opens the session. Fails if its lease cannot be granted, or if the name is invalid.
    pub(in crate::recipes) async fn open(self) -> Result<LockQueue> {
        LockQueue::open(&self.client, &self.name, self.ttl).await
    }
}
