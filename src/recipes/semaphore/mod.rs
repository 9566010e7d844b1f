//! A semaphore: a number of permits that are held at the same time in the whole cluster.
//!
//! Permits are given in the order of the requests. Each request has a key of its own, so several tasks of a session can
//! hold permits; none holds more than it has requested.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let semaphore = etcd.semaphore("imports", 4).await?;
//! let permit = semaphore.acquire().await?;
//! // … at most 4 imports run in the cluster …
//! permit.release().await?;
//!
//! let imported = semaphore.scope(|_| async { "done" }).await?;
//! # let _ = imported;
//! # Ok(())
//! # }
//! ```
//!
//! An actor gets a permit by messages: `semaphore.acquire().deliver_to(recipient)` sends it [`LockEvent`]s.
//!
//! # Keys
//! `<name>/permits/<claim>`, bound to the lease of the session. A request holds a permit while fewer older keys exist
//! than there are permits. A key that no request has put takes a permit as well; a request that waits behind it fails
//! with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked). The Go client has no such recipe.
//!
//! All users of a semaphore should use the same number of permits. While the numbers differ, for example during an
//! update of the application, at most the largest one of them are held.
//!
//! # What a waiting request costs
//! With one permit, a request watches only the key before its own. With `n` permits, any of the older keys may go first:
//! a request watches all keys of the semaphore, and receives an event, without a request, whenever one goes. It reads the
//! `2n - 1` keys before its own again only when `n` of them, or as many as are too many, have gone. A release therefore
//! causes about two reads in the whole cluster, however many requests wait.
//!
//! # Fencing
//! The token of a permit is the create revision of its key: it is unique, and grows in the order of the requests. Several
//! tokens are valid at a time, so another store cannot reject the writes of a permit that was lost by its token alone;
//! a transaction of [`Ownership::txn`] is applied only while the permit is held.
//!
//! The end of a session, [`Ownership::lost`], and too many owners after a pause are as for a [mutex](super::mutex).

mod permit;
mod semaphore_builder;

use std::{fmt, time::Duration};

use bytes::Bytes;

pub use super::mutex::{ClaimHandle, LockEvent, Ownership, OwnershipLost};
pub use permit::{AcquirePermit, Permit};
pub use semaphore_builder::SemaphoreBuilder;

use super::{
    lock_queue::{LockQueue, QueueRule, acquired_within, run_under},
    session::Session,
};
use crate::{error::Result, request::IntoBytes};

/// Reason of a request that has timed out.
const NOT_ACQUIRED: &str = "the permit was not acquired within the timeout";

impl Session {
    /// Returns the semaphore with this name and number of permits. It works until the session ends: a lost or closed
    /// session loses its permits.
    pub fn semaphore(&self, name: impl IntoBytes, permits: u32) -> Semaphore {
        Semaphore::new(self, name, permits)
    }
}

/// A semaphore in the cluster, as one session uses it.
#[derive(Clone)]
pub struct Semaphore {
    queue: LockQueue,
    permits: u32,
}

impl Semaphore {
    /// Returns the semaphore with this name and number of permits, for this session.
    pub fn new(session: &Session, name: impl IntoBytes, permits: u32) -> Self {
        let rule = QueueRule::Permit(permits);
        Self {
            queue: LockQueue::new(session, &name.into_bytes(), rule),
            permits,
        }
    }

    /// Returns the number of permits.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Requests a permit. Await the request to get a [`Permit`], or call [`deliver_to`](AcquirePermit::deliver_to) to
    /// hold it on behalf of an actor.
    pub fn acquire(&self) -> AcquirePermit {
        AcquirePermit::new(self.queue.clone())
    }

    /// Requests a permit and waits for at most `timeout`. Fails as [`acquire`](Self::acquire) does, and with
    /// [`ErrorKind::DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) after the timeout.
    pub async fn acquire_within(&self, timeout: Duration) -> Result<Permit> {
        acquired_within(timeout, NOT_ACQUIRED, self.acquire()).await
    }

    /// Takes a permit if one is available and no other request waits for it. Returns `None` otherwise, without writing
    /// anything. Fails as [`acquire`](Self::acquire) does.
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        let entry = self.queue.try_acquire(Bytes::new()).await?;
        entry.map(Permit::new).transpose()
    }

    /// Runs `work` with a permit and returns its output. Cancels the work when the permit is lost, and releases it in any
    /// case, as [`Mutex::scope`](super::mutex::Mutex::scope) does.
    pub async fn scope<T, F, W>(&self, work: W) -> Result<T>
    where
        W: FnOnce(Ownership) -> F,
        F: Future<Output = T>,
    {
        run_under(self.acquire().await?, work).await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("prefix", &self.queue.keys.prefix)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
