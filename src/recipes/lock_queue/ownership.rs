//! The owner's view of a lock or a leadership.

use std::{fmt, time::Duration};

use bytes::Bytes;

use crate::{
    client::Client,
    kv::{Compare, KeyValue, Txn},
    recipes::{
        ownership_lost::OwnershipLost,
        read_then_watch::{KeysUpdate, ReadThenWatch},
        session::SessionLease,
        temporary_errors::RETRY_DELAY,
    },
};

/// A view of a lock or a leadership, for the work that runs under it. Clones are cheap, and dropping one does not
/// release the lock.
#[derive(Clone)]
pub struct Ownership {
    pub(super) client: Client,
    pub(in crate::recipes) session_lease: SessionLease,
    pub(super) key: Bytes,
    pub(super) token: i64,
}

impl Ownership {
    /// Returns the fencing token: the create revision of the key. Each later owner has a larger one.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Returns the key in etcd that represents the ownership.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns the id of the lease that the key is bound to.
    pub fn lease(&self) -> i64 {
        self.session_lease.id()
    }

    /// Returns how long the ownership is certain, unless the key is deleted or the lease is revoked.
    pub fn remaining(&self) -> Duration {
        self.session_lease.remaining()
    }

    /// Returns transaction conditions that hold only during this ownership: the key has the same create revision and
    /// the same lease.
    pub fn conditions(&self) -> [Compare; 2] {
        [
            Compare::create_revision(self.key.clone()).eq(self.token),
            Compare::lease(self.key.clone()).eq(self.lease()),
        ]
    }

    /// Starts a transaction that is applied only during this ownership. Its response has `succeeded: false` if the
    /// ownership was lost, or if a condition that you added does not hold.
    pub fn txn(&self) -> Txn<Client> {
        self.client.txn().when(self.conditions())
    }

    /// Waits until the ownership is lost or no longer certain, and returns the reason.
    ///
    /// If clocks run at the same speed, this resolves before another session can become the owner, unless the key is
    /// deleted or the lease is revoked.
    pub fn lost(&self) -> impl Future<Output = OwnershipLost> + Send + 'static + use<> {
        let ownership = self.clone();
        async move {
            tokio::select! {
                biased;
                loss = ownership.session_lease.ended_or_at_risk() => loss,
                () = ownership.key_taken() => OwnershipLost::Taken,
            }
        }
    }

    /// Waits until the key is deleted or bound to another lease.
    async fn key_taken(&self) {
        let mut updates = ReadThenWatch::key(self.client.clone(), self.key.clone());
        loop {
            let taken = match updates.next().await {
                Ok(KeysUpdate::Snapshot(found)) => {
                    !found.first().is_some_and(|kv| self.matches(kv))
                }
                Ok(KeysUpdate::Events(events)) => {
                    let last_put = events.last().filter(|event| event.is_put());
                    let kv = last_put.and_then(|event| event.kv.as_ref());
                    !kv.is_some_and(|kv| self.matches(kv))
                }
                // An error does not show that the key is gone: an outage ends the ownership only with its lease.
                Err(_) => {
                    tokio::time::sleep(RETRY_DELAY).await;
                    false
                }
            };
            if taken {
                return;
            }
        }
    }

    fn matches(&self, kv: &KeyValue) -> bool {
        kv.create_revision == self.token && kv.lease == self.lease()
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
