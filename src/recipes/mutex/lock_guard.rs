//! A lock while it is held.

use std::{fmt, ops::Deref};

use bytes::Bytes;

use super::Ownership;
use crate::{
    error::Result,
    kv::Compare,
    layers::exactly_once::Fence,
    recipes::lock_queue::{ClaimGuard, QueueEntry},
};

/// A lock that is held. Dereferences to its [`Ownership`]. Dropping it releases the lock in the background.
///
/// Drop it when [`Ownership::lost`] resolves: [`Client::shutdown`](crate::Client::shutdown) waits for that, and leaves
/// the lock to its TTL if the guard is not dropped in time.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    entry: QueueEntry,
}

impl LockGuard {
    /// Fails if the client shuts down.
    pub(super) fn new(entry: QueueEntry) -> Result<Self> {
        entry.hold()?;
        Ok(Self { entry })
    }

    /// Releases the lock and waits for the response. Fails with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if
    /// the lock was lost before; the lock of another session is never released.
    pub async fn unlock(self) -> Result<()> {
        self.entry.release().await
    }
}

impl ClaimGuard for LockGuard {
    async fn release(self) -> Result<()> {
        self.unlock().await
    }
}

impl Fence for LockGuard {
    fn fence_conditions(&self) -> Vec<Compare> {
        (**self).fence_conditions()
    }

    fn fence_key(&self) -> Bytes {
        (**self).fence_key()
    }
}

impl Deref for LockGuard {
    type Target = Ownership;

    fn deref(&self) -> &Ownership {
        &self.entry.ownership
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&**self).finish()
    }
}
