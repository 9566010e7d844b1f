//! An election that was won.

use std::{fmt, ops::Deref};

use bytes::Bytes;

use super::{Ownership, OwnershipLost};
use crate::{
    error::Result,
    kv::put,
    recipes::lock_queue::{ClaimGuard, QueueEntry},
    request::IntoBytes,
};

/// An election that was won. Dereferences to its [`Ownership`]. Dropping it resigns in the background.
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    entry: QueueEntry,
}

impl Leadership {
    pub(super) fn new(entry: QueueEntry) -> Self {
        Self { entry }
    }

    pub(super) async fn won(entry: QueueEntry, value: Bytes) -> Result<Self> {
        let adopted = entry.adopted;
        let leadership = Self { entry };
        if adopted {
            leadership.proclaim(value).await?;
        }
        Ok(leadership)
    }

    /// Replaces the value that observers of the election see. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the leadership was lost.
    pub async fn proclaim(&self, value: impl IntoBytes) -> Result<()> {
        let write = put(self.key().clone(), value).lease(self.lease());
        let response = self.txn().then([write]).await?;
        if response.succeeded {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }

    /// Gives up the leadership and waits for the response. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if it was lost before.
    pub async fn resign(self) -> Result<()> {
        self.entry.release().await
    }
}

impl ClaimGuard for Leadership {
    async fn release(self) -> Result<()> {
        self.resign().await
    }
}

impl Deref for Leadership {
    type Target = Ownership;

    fn deref(&self) -> &Ownership {
        &self.entry.ownership
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&**self).finish()
    }
}
