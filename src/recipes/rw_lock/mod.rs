//! A lock that many readers or one writer hold at a time.
//!
//! Readers and writers get the lock in the order of their requests: a reader waits for the writers before it, a writer for
//! everybody before it. A writer is not starved by readers, because later readers wait behind it. Each request watches a
//! single key: the newest older key for which it waits.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::kv::{get, put};
//!
//! let lock = etcd.rw_lock("config").await?;
//!
//! let reading = lock.read().await?;
//! let response = reading.txn().then([get("config.json")]).await?;
//! assert!(response.succeeded, "the lock was lost");
//! reading.unlock().await?;
//!
//! let writing = lock.write().await?;
//! let response = writing.txn().then([put("config.json", "{}")]).await?;
//! assert!(response.succeeded, "the lock was lost");
//! writing.unlock().await?;
//! # Ok(())
//! # }
//! ```
//!
//! An actor gets the lock by messages: `lock.read().deliver_to(recipient)` and `lock.write().deliver_to(recipient)` send
//! it [`LockEvent`]s.
//!
//! # Keys
//! `<name>/read/<claim>` and `<name>/write/<claim>`, as in the Go client's recipe `RWMutex`: Go programs share the lock.
//! As in Go, every older key under `<name>/` blocks a writer: do not put other keys there, do not nest names, and do not
//! use the name for another recipe. A request behind such a key fails with
//! [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked).
//!
//! Each request has a key of its own, so tasks of one session can read at the same time, and exclude each other where
//! readers and writers do. A task that holds the lock and requests it again may wait for itself; a reader cannot become a
//! writer without releasing the lock.
//!
//! # Fencing
//! The token of an ownership is the create revision of its key. A writer's token is larger than that of every reader and
//! writer that had the lock before it, so another store can reject writes of an earlier writer. A reader's token lies
//! between the tokens of the writers before and after it: a store that has seen it can reject the writes of all earlier
//! writers. Readers that hold the lock together have different tokens.
//!
//! The end of a session, [`Ownership::lost`], and two owners after a pause are as for a [mutex](super::mutex): a
//! transaction of [`Ownership::txn`] is applied only while the reader or writer still has the lock.

mod read_lock;
mod rw_lock_builder;
mod write_lock;

use std::{fmt, time::Duration};

use bytes::Bytes;

pub use super::mutex::{ClaimHandle, LockEvent, Ownership, OwnershipLost};
pub use read_lock::{AcquireRead, ReadGuard};
pub use rw_lock_builder::RwLockBuilder;
pub use write_lock::{AcquireWrite, WriteGuard};

use super::{
    lock_queue::{LockQueue, QueueRule, acquired_within, run_under},
    session::Session,
};
use crate::{error::Result, request::IntoBytes};

/// Reason of a request that has timed out.
const NOT_ACQUIRED: &str = "the lock was not acquired within the timeout";

impl Session {
    /// Returns the read-write lock with this name. It works until the session ends: a lost or closed session loses its
    /// locks.
    pub fn rw_lock(&self, name: impl IntoBytes) -> RwLock {
        RwLock::new(self, name)
    }
}

/// A lock that many readers or one writer hold at a time, as one session uses it. Tasks that share an `RwLock` or its
/// clones exclude each other as tasks of different sessions do.
#[derive(Clone)]
pub struct RwLock {
    queue: LockQueue,
}

impl RwLock {
    /// Returns the read-write lock with this name, for this session.
    pub fn new(session: &Session, name: impl IntoBytes) -> Self {
        Self {
            queue: LockQueue::new(session, &name.into_bytes(), QueueRule::Write),
        }
    }

    /// Requests the lock as a reader. Await the request to get a [`ReadGuard`], or call
    /// [`deliver_to`](AcquireRead::deliver_to) to hold the lock on behalf of an actor.
    pub fn read(&self) -> AcquireRead {
        AcquireRead::new(self.queue.with_rule(QueueRule::Read))
    }

    /// Requests the lock as a writer. Await the request to get a [`WriteGuard`], or call
    /// [`deliver_to`](AcquireWrite::deliver_to) to hold the lock on behalf of an actor.
    pub fn write(&self) -> AcquireWrite {
        AcquireWrite::new(self.queue.clone())
    }

    /// Requests the lock as a reader and waits for at most `timeout`. Fails as [`read`](Self::read) does, and with
    /// [`ErrorKind::DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) after the timeout.
    pub async fn read_within(&self, timeout: Duration) -> Result<ReadGuard> {
        acquired_within(timeout, NOT_ACQUIRED, self.read()).await
    }

    /// Requests the lock as a writer and waits for at most `timeout`. Fails as [`write`](Self::write) does, and with
    /// [`ErrorKind::DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) after the timeout.
    pub async fn write_within(&self, timeout: Duration) -> Result<WriteGuard> {
        acquired_within(timeout, NOT_ACQUIRED, self.write()).await
    }

    /// Takes the lock as a reader if no writer holds it or waits for it. Returns `None` otherwise, without writing
    /// anything. Fails as [`read`](Self::read) does.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        let queue = self.queue.with_rule(QueueRule::Read);
        let entry = queue.try_acquire(Bytes::new()).await?;
        entry.map(ReadGuard::new).transpose()
    }

    /// Takes the lock as a writer if nobody holds it or waits for it. Returns `None` otherwise, without writing
    /// anything. Fails as [`write`](Self::write) does.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        let entry = self.queue.try_acquire(Bytes::new()).await?;
        entry.map(WriteGuard::new).transpose()
    }

    /// Runs `work` under the lock as a reader and returns its output. Cancels the work when the lock is lost, and
    /// releases the lock in any case, as [`Mutex::scope`](super::mutex::Mutex::scope) does.
    pub async fn read_scope<T, F, W>(&self, work: W) -> Result<T>
    where
        W: FnOnce(Ownership) -> F,
        F: Future<Output = T>,
    {
        run_under(self.read().await?, work).await
    }

    /// Runs `work` under the lock as a writer and returns its output. Cancels the work when the lock is lost, and
    /// releases the lock in any case, as [`Mutex::scope`](super::mutex::Mutex::scope) does.
    pub async fn write_scope<T, F, W>(&self, work: W) -> Result<T>
    where
        W: FnOnce(Ownership) -> F,
        F: Future<Output = T>,
    {
        run_under(self.write().await?, work).await
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("prefix", &self.queue.keys.prefix)
            .finish_non_exhaustive()
    }
}
