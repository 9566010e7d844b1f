//! The handle of an item that was taken.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{claim_item::ClaimedItem, item_hold::ItemHold};
use crate::{
    client::Client,
    error::Result,
    kv::{Compare, IntoOps, KeyValue, Op},
    layers::exactly_once::Fence,
    recipes::{
        mutex::{Ownership, OwnershipLost},
        session::Session,
    },
};

/// An item that was taken from a [`Queue`](super::Queue). Complete it with [`done`](Self::done) or
/// [`done_with`](Self::done_with).
///
/// Dropping it counts as a failure: the item is ready again when its visibility time-out has passed, or when the session
/// of its taker ends.
#[must_use = "a dropped item is taken again after the visibility time-out"]
pub struct QueueItem {
    kv: KeyValue,
    hold: Arc<ItemHold>,
    /// Keeps the client running.
    _client: Option<Client>,
}

impl QueueItem {
    /// Holds a claimed item. Runs on the client's thread.
    pub(super) fn start(
        ownership: Ownership,
        claimed: ClaimedItem,
        session: Arc<Session>,
        visibility: Duration,
    ) -> Result<Self> {
        let kv = claimed.kv;
        let hold = ItemHold::start(ownership, kv.key.clone(), session, visibility)?;
        Ok(Self {
            kv,
            hold,
            _client: None,
        })
    }

    /// Returns the item for the application, which keeps the client running.
    pub(super) fn kept_by(self, client: &Client) -> Self {
        Self {
            _client: Some(client.clone()),
            ..self
        }
    }

    pub(super) fn hold(&self) -> &Arc<ItemHold> {
        &self.hold
    }

    /// Returns the value of the item.
    pub fn value(&self) -> &Bytes {
        &self.kv.value
    }

    /// Returns the key of the item.
    pub fn key(&self) -> &Bytes {
        &self.kv.key
    }

    /// Returns the revision at which the item was pushed.
    pub fn pushed_at(&self) -> i64 {
        self.kv.create_revision
    }

    /// Returns how often the item was taken: 1 for the first time. Counts all takes, also those whose future was dropped
    /// before it returned the item, and those after which the item was put back.
    pub fn attempt(&self) -> i64 {
        self.kv.version - 1
    }

    /// Returns the fencing token: the revision at which the item was taken. Each later take has a larger one.
    pub fn token(&self) -> i64 {
        self.hold.ownership.token()
    }

    /// Returns the view of the taker: for [`Ownership::is_certain`], or as the fence of other writes.
    pub fn ownership(&self) -> &Ownership {
        &self.hold.ownership
    }

    /// Returns conditions of a transaction that hold only while the item is taken by this taker.
    pub fn conditions(&self) -> [Compare; 2] {
        self.hold.ownership.conditions()
    }

    /// Returns how long the item is certain to be taken by this taker; zero if it is not.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Waits until the item is no longer taken, or may no longer be, and returns the reason. See [`Ownership::lost`].
    pub fn lost(&self) -> impl Future<Output = OwnershipLost> + Send + 'static + use<> {
        self.hold.ownership.lost()
    }

    /// Sets the visibility time-out again, to this duration from now on, for work that takes longer. Sends nothing. Fails
    /// with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) or
    /// [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) if the item is no longer taken, and with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) also while the lease of the session is only at risk: then the
    /// time-out is unchanged, and a later call can succeed.
    pub fn extend(&self, duration: Duration) -> Result<()> {
        self.hold.extend(duration)
    }

    /// Completes the item: removes it from the queue. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if it was no longer taken by this taker. Applied
    /// [exactly once](crate::layers::exactly_once), or surely not.
    pub async fn done(&self) -> Result<()> {
        self.done_with(Vec::<Op>::new()).await
    }

    /// Completes the item and applies operations, atomically: both or neither. Fails as [`done`](Self::done) does.
    /// Accepts what [`Txn::then`](crate::kv::Txn::then) accepts.
    pub async fn done_with(&self, ops: impl IntoOps) -> Result<()> {
        self.hold.complete(ops).await
    }

    /// Makes the item ready for the next taker at once, at its old place. From now on, this taker has it no longer, also if
    /// the request fails: it is then repeated in the background. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the item was no longer taken by this taker.
    pub async fn put_back(&self) -> Result<()> {
        self.hold.put_back().await
    }

    /// Makes the item ready again after a delay of at least a second, also if this process ends before. etcd rounds
    /// it up to whole seconds, and to one and a half election timeouts. This sends two requests: if the first one fails,
    /// which grants a lease for the delay, the item is still taken. From the second one on, this taker has it no longer; if
    /// that fails, this process makes the item ready after the delay. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the item was no longer taken by this taker.
    pub async fn retry_after(&self, delay: Duration) -> Result<()> {
        self.hold.retry_after(delay).await
    }
}

impl Fence for QueueItem {
    fn fence_conditions(&self) -> Vec<Compare> {
        self.conditions().into()
    }

    fn fence_key(&self) -> Bytes {
        self.hold.ownership.key().clone()
    }
}

impl fmt::Debug for QueueItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueItem")
            .field("key", self.key())
            .field("attempt", &self.attempt())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
