//! The owner's view of a lock or a leadership.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    client::Client,
    error::Result,
    kv::{Compare, KeyValue, Txn},
    layers::{
        exactly_once::Fence,
        read_then_watch::{KeysUpdate, ReadThenWatch},
    },
    recipes::{ownership_lost::OwnershipLost, session::SessionLease},
    retry::availability::{RETRY_DELAY, is_temporary},
};

/// A view of a lock or a leadership, for the work that runs under it. Clones are cheap, and dropping one does not
/// release the lock.
#[derive(Clone)]
pub struct Ownership {
    pub(super) client: Client,
    pub(in crate::recipes) session_lease: SessionLease,
    pub(super) key: Bytes,
    pub(super) token: i64,
    pub(in crate::recipes) early_end: EarlyEnd,
}

/// Why an ownership ended although its lease did not. Set by the task that has found it out; shared by all views of the
/// ownership.
#[derive(Clone, Default)]
pub(in crate::recipes) struct EarlyEnd(Arc<watch::Sender<Option<OwnershipLost>>>);

impl EarlyEnd {
    /// Sets the reason. The first reason is kept.
    pub(in crate::recipes) fn set(&self, loss: OwnershipLost) {
        self.0.send_if_modified(|reason| {
            let is_first = reason.is_none();
            reason.get_or_insert(loss);
            is_first
        });
    }

    fn get(&self) -> Option<OwnershipLost> {
        *self.0.borrow()
    }

    pub(in crate::recipes) async fn reached(&self) -> OwnershipLost {
        let mut reason = self.0.subscribe();
        let reached = reason.wait_for(Option::is_some).await.map(|found| *found);
        match reached {
            Ok(Some(loss)) => loss,
            // Never happens: `self` owns the sender.
            _ => std::future::pending().await,
        }
    }
}

impl Ownership {
    /// Creates the view of a key with this create revision that is bound to the lease.
    pub(in crate::recipes) fn new(
        client: Client,
        session_lease: SessionLease,
        key: Bytes,
        token: i64,
    ) -> Self {
        Self {
            client,
            session_lease,
            key,
            token,
            early_end: EarlyEnd::default(),
        }
    }

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

    /// Returns whether the ownership is certain. Sends no request, so it can be called before every step of the work.
    ///
    /// It is `false` from a moment before the lease ends until the lease is renewed, and for good once the ownership is
    /// known to be lost. The deletion of the key by somebody else is noticed while a future of [`lost`](Self::lost) is
    /// polled, and at once by a [`Leadership`](crate::recipes::election::Leadership).
    pub fn is_certain(&self) -> bool {
        self.loss_now().is_none()
    }

    pub(in crate::recipes) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns whether both are views of the same ownership.
    pub(in crate::recipes) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.early_end.0, &other.early_end.0)
    }

    pub(in crate::recipes) fn loss_now(&self) -> Option<OwnershipLost> {
        self.early_end
            .get()
            .or_else(|| self.session_lease.loss_now())
    }

    /// Waits until the ownership is certain again, after [`lost`](Self::lost) has returned [`OwnershipLost::AtRisk`]:
    /// the lease was renewed after its deadline, and the key is still there. Returns at once if the ownership is certain
    /// already. Fails when the ownership is lost for good.
    pub async fn certain_again(&self) -> Result<()> {
        tokio::select! {
            biased;
            loss = self.early_end.reached() => Err(loss.into()),
            certain = self.renewed_with_key() => certain,
        }
    }

    /// Waits until the lease is certain and the key is still there.
    async fn renewed_with_key(&self) -> Result<()> {
        loop {
            self.session_lease.certain().await?;
            match self.txn().await {
                Ok(found) if !found.succeeded => {
                    self.early_end.set(OwnershipLost::Taken);
                    return Err(OwnershipLost::Taken.into());
                }
                Ok(_) if self.is_certain() => return Ok(()),
                Ok(_) => {}
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
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

    /// Waits until the ownership is lost or no longer certain, or the client shuts down, and returns the reason. A
    /// shutdown gives the lock up only after its guard was dropped, see [`Client::shutdown`].
    ///
    /// If clocks run at the same speed, this resolves before another session can become the owner, unless the key is
    /// deleted or the lease is revoked. The clock is read on every poll: after a pause of the process, the first poll
    /// resolves if the time of the lease is over.
    ///
    /// [`OwnershipLost::AtRisk`] is the only reason that can pass, see [`certain_again`](Self::certain_again). All other
    /// reasons are final.
    pub fn lost(&self) -> impl Future<Output = OwnershipLost> + Send + 'static + use<> {
        let ownership = self.clone();
        async move {
            tokio::select! {
                biased;
                loss = ownership.early_end.reached() => loss,
                loss = ownership.session_lease.ended_or_at_risk() => loss,
                loss = ownership.key_taken() => loss,
            }
        }
    }

    /// Waits until the key is deleted or bound to another lease.
    pub(in crate::recipes) async fn key_taken(&self) -> OwnershipLost {
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
                self.early_end.set(OwnershipLost::Taken);
                return OwnershipLost::Taken;
            }
        }
    }

    /// Returns the ownership for background work, which does not keep the client running.
    pub(in crate::recipes) fn for_background(&self) -> Self {
        Self {
            client: self.client.for_background(),
            ..self.clone()
        }
    }

    fn matches(&self, kv: &KeyValue) -> bool {
        kv.create_revision == self.token && kv.lease == self.lease()
    }
}

impl Fence for Ownership {
    fn fence_conditions(&self) -> Vec<Compare> {
        self.conditions().into()
    }

    fn fence_key(&self) -> Bytes {
        self.key.clone()
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
