//! What is held: a key, its create revision, and the lease it is bound to.

use std::{fmt, time::Duration};

use bytes::Bytes;

use super::tenure::{OwnershipLost, Tenure};
use crate::{
    client::Client,
    error::Result,
    kv::{Compare, KeyValue, Txn},
    watch::WatchEvent,
};

/// Between two attempts of what must be done sooner or later.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// A lock or a leadership, as the work under it sees it. Clones are cheap; none of them releases it.
#[derive(Clone)]
pub struct Ownership {
    pub(super) client: Client,
    pub(super) tenure: Tenure,
    pub(super) key: Bytes,
    pub(super) token: i64,
}

impl Ownership {
    /// The fencing token: the create revision of the key. A later holder has a larger one.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// The key that stands for it.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// The lease the key is bound to.
    pub fn lease(&self) -> i64 {
        self.tenure.lease()
    }

    /// How long it is held for certain, unless somebody deletes its key or revokes its lease.
    pub fn remaining(&self) -> Duration {
        self.tenure.remaining()
    }

    /// The conditions of a transaction that hold only while it is held: the key is the same that was created for it,
    /// and bound to the same lease.
    pub fn conditions(&self) -> [Compare; 2] {
        [
            Compare::create_revision(self.key.clone()).eq(self.token),
            Compare::lease(self.key.clone()).eq(self.lease()),
        ]
    }

    /// A transaction that does what it is told only while this is held. `succeeded` is false where it is not any more,
    /// or where a condition that was added does not hold.
    pub fn txn(&self) -> Txn<Client> {
        self.client.txn().when(self.conditions())
    }

    /// Waits until it is lost, or not held for certain any more. That is before anybody else can have it, as long as
    /// clocks run at the same speed, unless somebody deletes its key or revokes its lease.
    pub fn lost(&self) -> impl Future<Output = OwnershipLost> + Send + 'static + use<> {
        let held = self.clone();
        async move {
            tokio::select! {
                biased;
                loss = held.tenure.doubtful() => loss,
                () = held.taken() => OwnershipLost::Taken,
            }
        }
    }

    /// Waits until the key is deleted or bound to another lease.
    async fn taken(&self) {
        loop {
            // What fails here says nothing about the key: the lease decides while nobody can be asked.
            if matches!(self.watch_until_taken().await, Ok(true)) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn watch_until_taken(&self) -> Result<bool> {
        let found = self.client.get(self.key.clone()).await?;
        if !found.first().is_some_and(|found| self.is_ours(found)) {
            return Ok(true);
        }
        let watch = self.client.watch(self.key.clone());
        let mut watch = watch.start_revision(found.header.revision + 1).await?;
        while let Some(item) = watch.next().await {
            let events = match item {
                WatchEvent::Events(events) => events,
                // Perhaps restored from an old backup: it is read again whether the key is there.
                WatchEvent::RevisionRegressed { .. } => return Ok(false),
                _ => continue,
            };
            let ours = |found: &KeyValue| self.is_ours(found);
            let last = events.last().filter(|event| event.is_put());
            if !last.and_then(|put| put.kv.as_ref()).is_some_and(ours) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn is_ours(&self, found: &KeyValue) -> bool {
        found.create_revision == self.token && found.lease == self.lease()
    }
}

impl fmt::Debug for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ownership")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
