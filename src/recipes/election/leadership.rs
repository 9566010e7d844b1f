//! An election that was won.

use std::{fmt, ops::Deref};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Ownership, OwnershipLost,
    leader_monitor::{HealthCheck, LeaderMonitor, LeaderStatus},
};
use crate::{
    call::deadline_in,
    error::Result,
    kv::{Compare, get, put},
    layers::exactly_once::Fence,
    recipes::{
        lock_queue::{ClaimGuard, QueueEntry},
        txn_read::first_key,
    },
    request::IntoBytes,
    retry::availability::{RETRY_DELAY, is_temporary},
};

/// An election that was won. Dereferences to its [`Ownership`]. Dropping it resigns in the background.
///
/// Drop it when [`Ownership::lost`] resolves: [`Client::shutdown`](crate::Client::shutdown) waits for that, and leaves
/// the leadership to its TTL if it is not dropped in time.
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    /// Dropped first: the candidate counts as leader no longer when it starts to resign.
    monitor: LeaderMonitor,
    entry: QueueEntry,
    /// Revision of the last proclamation, or of the campaign. `None` if the outcome of the last proclamation is unknown.
    /// Locked while a proclamation is in flight.
    proclaimed: tokio::sync::Mutex<Option<i64>>,
}

impl Leadership {
    /// Starts the leadership of the first entry in the queue. Proclaims the value if the key may have another one. Fails
    /// if the client shuts down.
    pub(super) async fn won(
        entry: QueueEntry,
        value: Bytes,
        status: LeaderStatus,
        health: Option<HealthCheck>,
    ) -> Result<Self> {
        let adopted = entry.adopted;
        let leadership = Self::new(entry, status, health)?;
        if adopted {
            leadership.proclaim(value).await?;
        }
        Ok(leadership)
    }

    /// Fails if the client shuts down.
    pub(super) fn new(
        entry: QueueEntry,
        status: LeaderStatus,
        health: Option<HealthCheck>,
    ) -> Result<Self> {
        entry.hold()?;
        let proclaimed = (!entry.adopted).then(|| entry.ownership.token());
        Ok(Self {
            monitor: LeaderMonitor::start(&entry.ownership, status, health),
            entry,
            proclaimed: tokio::sync::Mutex::new(proclaimed),
        })
    }

    /// Replaces the value that observers of the election see. Concurrent calls are applied one after the other.
    ///
    /// A proclamation never overwrites a later one, however late its request arrives. Repeats a request without a
    /// response for at most the client's `request_timeout`. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the leadership was lost, and otherwise as any write does.
    pub async fn proclaim(&self, value: impl IntoBytes) -> Result<()> {
        let value = value.into_bytes();
        let deadline = deadline_in(self.entry.client().request_timeout());
        let mut proclaimed = self.proclaimed.lock().await;
        loop {
            match self.proclaim_once(&value, &mut proclaimed).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_temporary(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the value if the key still has the revision `proclaimed`. Returns `false` without a write if that revision
    /// is unknown or has changed: the first case reads it, the second makes it unknown. It is also unknown after an error
    /// or a drop of this future.
    async fn proclaim_once(&self, value: &Bytes, proclaimed: &mut Option<i64>) -> Result<bool> {
        let key = self.key();
        let Some(previous) = proclaimed.take() else {
            let response = self.txn().then([get(key.clone()).keys_only()]).await?;
            let found = first_key(&response).ok_or(OwnershipLost::Taken)?;
            *proclaimed = Some(found.mod_revision);
            return Ok(false);
        };
        let unchanged = Compare::mod_revision(key.clone()).eq(previous);
        let write = put(key.clone(), value.clone()).lease(self.lease());
        let response = self.txn().when([unchanged]).then([write]).await?;
        if response.succeeded {
            *proclaimed = Some(response.header.revision);
        }
        Ok(response.succeeded)
    }

    /// Gives up the leadership and waits for the response. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if it was lost before. If it fails for another reason,
    /// resigning continues in the background until it succeeds.
    pub async fn resign(self) -> Result<()> {
        drop(self.monitor);
        self.entry.release().await
    }
}

impl ClaimGuard for Leadership {
    async fn release(self, _abandoned: impl Future<Output = ()> + Send) -> Result<()> {
        self.resign().await
    }
}

impl Fence for Leadership {
    fn fence_conditions(&self) -> Vec<Compare> {
        (**self).fence_conditions()
    }

    fn fence_key(&self) -> Bytes {
        (**self).fence_key()
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
