//! A lock that one session in the cluster holds at a time.
//!
//! Sessions get the lock in the order of their requests. Each waiting session watches only the session before it. Keys
//! have the layout of the Go client's `concurrency` package, so Go programs and `etcdctl lock` share the same queue.
//!
//! As in Go, every older key under `<name>/` blocks the lock: do not put other keys there, and do not nest names. A
//! request behind such a key fails with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked) instead of waiting forever.
//!
//! [`Session::mutex`] uses a session of yours. Its end, by an outage that is longer than its TTL or by closing it, ends
//! its locks: a lock that is held is lost, and requests fail with
//! [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost).
//! [`Client::mutex`](crate::Client::mutex) opens a session of its own that heals: a lock that is held is lost as well,
//! but requests continue with the new lease.
//!
//! # When two owners are possible
//! A lease is valid for a limited time. An owner that pauses for longer (a long stop of the process, a network
//! partition) may continue to work after another session got the lock. Two features protect against that:
//! - [`Ownership::lost`] resolves, and [`Mutex::scope`] cancels the work, as soon as the lease is no longer certain.
//! - [`Ownership::txn`] writes to etcd only during the ownership, even if clocks are wrong. Other stores can reject
//!   writes that carry an older [`Ownership::token`].
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//! use actix_etcd::kv::put;
//!
//! let mutex = etcd.mutex("jobs/cleaner").ttl(Duration::from_secs(10)).await?;
//! let guard = mutex.lock().await?;
//! let response = guard.txn().then([put("cleaned", "yes")]).await?;
//! assert!(response.succeeded, "the lock was lost");
//! guard.unlock().await?;
//!
//! let token = mutex.scope(|ownership| async move { ownership.token() }).await?;
//! println!("done with fencing token {token}");
//! # Ok(())
//! # }
//! ```
//!
//! An actor gets the lock by messages: `mutex.lock().deliver_to(recipient)` sends it [`LockEvent`]s.

mod acquire_lock;
mod mutex_builder;

use std::{fmt, time::Duration};

use bytes::Bytes;

pub use acquire_lock::{AcquireLock, LockEvent, LockGuard};
pub use mutex_builder::MutexBuilder;

pub use super::{
    lock_queue::{ClaimHandle, Ownership},
    ownership_lost::OwnershipLost,
};
use super::{
    lock_queue::{LockQueue, QueueRule, acquired_within, run_under},
    session::Session,
};
use crate::{error::Result, request::IntoBytes};

/// Reason of a request that has timed out.
const NOT_ACQUIRED: &str = "the lock was not acquired within the timeout";

impl Session {
    /// Returns the lock with this name. It works until the session ends: a lost or closed session loses its locks.
    pub fn mutex(&self, name: impl IntoBytes) -> Mutex {
        Mutex::new(self, name)
    }
}

/// A lock in the cluster, as one session uses it. Tasks that share a `Mutex` or its clones exclude each other as well.
#[derive(Clone)]
pub struct Mutex {
    queue: LockQueue,
}

impl Mutex {
    /// Returns the lock with this name, for this session.
    pub fn new(session: &Session, name: impl IntoBytes) -> Self {
        Self {
            queue: LockQueue::new(session, &name.into_bytes(), QueueRule::Exclusive),
        }
    }

    /// Requests the lock. Await the request to get a [`LockGuard`], or call
    /// [`deliver_to`](AcquireLock::deliver_to) to hold the lock on behalf of an actor.
    pub fn lock(&self) -> AcquireLock {
        AcquireLock::new(self.queue.clone())
    }

    /// Requests the lock and waits for at most `timeout`. Fails as [`lock`](Self::lock) does, and with
    /// [`ErrorKind::DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) after the timeout, whether another session holds the lock or no member responds.
    pub async fn lock_within(&self, timeout: Duration) -> Result<LockGuard> {
        acquired_within(timeout, NOT_ACQUIRED, self.lock()).await
    }

    /// Takes the lock if no session holds it or waits for it. Returns `None` otherwise, without writing anything. Fails as
    /// [`lock`](Self::lock) does.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>> {
        let entry = self.queue.try_acquire(Bytes::new()).await?;
        entry.map(LockGuard::new).transpose()
    }

    /// Runs `work` under the lock and returns its output. Cancels the work, by dropping its future, when the lock is
    /// lost. Releases the lock in any case.
    ///
    /// The time left on the lease is checked before every poll of the work. After a pause of the process for longer than
    /// that, the work is cancelled without another poll.
    ///
    /// Fails as [`lock`](Self::lock) does, and with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) or
    /// [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) if the work
    /// was cancelled.
    pub async fn scope<T, F, W>(&self, work: W) -> Result<T>
    where
        W: FnOnce(Ownership) -> F,
        F: Future<Output = T>,
    {
        run_under(self.lock().await?, work).await
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("prefix", &self.queue.keys.prefix)
            .finish_non_exhaustive()
    }
}
