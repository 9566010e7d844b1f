//! A lock that one session in the cluster holds at a time.
//!
//! Sessions get the lock in the order of their requests. Each waiting session watches only the session before it. Keys
//! have the layout of the Go client's `concurrency` package, so Go programs and `etcdctl lock` share the same queue.
//!
//! As in Go, every older key under `<name>/` blocks the lock: do not put other keys there, and do not nest names. A
//! request behind such a key fails with [`ErrorKind::LockBlocked`] instead of waiting forever.
//!
//! [`Session::mutex`] uses a session of yours. Its end, by an outage that is longer than its TTL or by closing it, ends
//! its locks: a lock that is held is lost, and requests fail with [`ErrorKind::SessionLost`].
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
mod lock_guard;
mod mutex_builder;

use std::{fmt, future::poll_fn, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;

pub use acquire_lock::{AcquireLock, LockEvent};
pub use lock_guard::LockGuard;
pub use mutex_builder::MutexBuilder;

use super::{lock_queue::LockQueue, session::Session};
pub use super::{
    lock_queue::{ClaimHandle, Ownership},
    ownership_lost::OwnershipLost,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    request::IntoBytes,
};

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
            queue: LockQueue::new(session, &name.into_bytes()),
        }
    }

    /// Requests the lock. Await the request to get a [`LockGuard`], or call
    /// [`deliver_to`](AcquireLock::deliver_to) to hold the lock on behalf of an actor.
    pub fn lock(&self) -> AcquireLock {
        AcquireLock::new(self.queue.clone())
    }

    /// Requests the lock and waits for at most `timeout`. Fails as [`lock`](Self::lock) does, and with
    /// [`ErrorKind::DeadlineExceeded`] after the timeout, whether another session holds the lock or no member responds.
    pub async fn lock_within(&self, timeout: Duration) -> Result<LockGuard> {
        match tokio::time::timeout(timeout, self.lock().into_future()).await {
            Ok(locked) => locked,
            Err(_) => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                Outcome::Rejected,
                "the lock was not acquired within the timeout",
            )),
        }
    }

    /// Takes the lock if no session holds it or waits for it. Returns `None` otherwise, without writing anything. Fails as
    /// [`lock`](Self::lock) does.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>> {
        let Some(entry) = self.queue.join_if_empty(Bytes::new()).await? else {
            return Ok(None);
        };
        entry.ownership.session_lease.certain().await?;
        LockGuard::new(entry).map(Some)
    }

    /// Runs `work` under the lock and returns its output. Cancels the work, by dropping its future, when the lock is
    /// lost. Releases the lock in any case.
    ///
    /// The time left on the lease is checked before every poll of the work. After a pause of the process for longer than
    /// that, the work is cancelled without another poll.
    ///
    /// Fails as [`lock`](Self::lock) does, and with [`ErrorKind::LockLost`] or [`ErrorKind::SessionLost`] if the work
    /// was cancelled.
    pub async fn scope<T, F, W>(&self, work: W) -> Result<T>
    where
        W: FnOnce(Ownership) -> F,
        F: Future<Output = T>,
    {
        let guard = self.lock().await?;
        let ownership = (*guard).clone();
        let mut work = pin!(async { work(ownership).await });
        let mut waiting = pin!(guard.lost());
        let output = poll_fn(|cx| {
            // The process may be paused at any step, so the clock is read directly before the work is polled.
            let loss = match waiting.as_mut().poll(cx) {
                Poll::Ready(loss) => Some(loss),
                Poll::Pending => guard.loss_now(),
            };
            match loss {
                Some(loss) => Poll::Ready(Err(loss)),
                None => work.as_mut().poll(cx).map(Ok),
            }
        })
        .await?;
        // The work is complete, so a failure to unlock is only logged.
        if let Err(error) = guard.unlock().await {
            tracing::debug!(%error, "lock not released yet, retrying in the background");
        }
        Ok(output)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("prefix", &self.queue.prefix)
            .finish_non_exhaustive()
    }
}
