//! A lock that one session in the cluster holds at a time.
//!
//! Who waits is served in the order of arrival, and watches only the one before. The layout of the keys is that of the
//! Go client's `concurrency` package, so that Go programs and `etcdctl lock` wait in the same queue. As there, every
//! key under `<name>/` counts: do not nest names.
//!
//! # What holds when
//! A lease is held by time: a holder that stops for longer than its lease (a long pause, a cut-off network) may go on as
//! if it held the lock when somebody else does. Two things guard against that. [`Ownership::lost`] and [`Mutex::scope`] tell
//! or end the work when the lease is not certain any more. And what is written through [`Ownership::txn`] is written only
//! while the lock is held, whatever the clocks say; stores other than etcd can refuse what carries an older
//! [`Ownership::token`].
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//! use actix_etcd::kv::put;
//!
//! let session = etcd.session(Duration::from_secs(10)).await?;
//! let mutex = session.mutex("jobs/cleaner");
//! let guard = mutex.lock().await?;
//! let done = guard.txn().then([put("cleaned", "yes")]).await?;
//! assert!(done.succeeded, "the lock was lost");
//! guard.unlock().await?;
//!
//! let cleaned = mutex.scope(|held| async move { held.token() }).await?;
//! println!("done under token {cleaned}");
//! # Ok(())
//! # }
//! ```

use std::{fmt, ops::Deref, time::Duration};

use actix::{Message, Recipient};
use bytes::Bytes;

pub use super::{claim::ClaimHandle, held::Ownership, tenure::OwnershipLost};
use super::{
    claim::{Hold, Told, claim},
    place::Place,
    queue::Queue,
    session::Session,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    request::IntoBytes,
};

/// A lock of the cluster, as one session sees it. Clones are the same; tasks that share it exclude each other, too.
#[derive(Clone)]
pub struct Mutex {
    queue: Queue,
}

impl Session {
    /// The lock of that name.
    pub fn mutex(&self, name: impl IntoBytes) -> Mutex {
        Mutex::new(self, name)
    }
}

impl Mutex {
    /// The lock of that name, to be held by this session.
    pub fn new(session: &Session, name: impl IntoBytes) -> Self {
        Self {
            queue: Queue::new(session, &name.into_bytes()),
        }
    }

    /// Waits until the lock is ours. Dropping the future leaves the queue.
    ///
    /// Outages are waited out for as long as the session lives. Fails with [`ErrorKind::SessionLost`] at once when it
    /// is lost, with [`ErrorKind::LockLost`] where somebody deleted our key in the queue, and where the user may not do
    /// this.
    pub async fn lock(&self) -> Result<LockGuard> {
        let place = self.queue.join(Bytes::new()).await?;
        place.first().await?;
        Ok(LockGuard { place })
    }

    /// The same, for at most that long; fails with [`ErrorKind::DeadlineExceeded`] after it, whether somebody else has
    /// the lock or nobody could be asked.
    pub async fn lock_within(&self, patience: Duration) -> Result<LockGuard> {
        match tokio::time::timeout(patience, self.lock()).await {
            Ok(locked) => locked,
            Err(_) => Err(Error::new(
                ErrorKind::DeadlineExceeded,
                Outcome::Rejected,
                "the lock could not be had in that time",
            )),
        }
    }

    /// Takes the lock if nobody holds it or waits for it. Where somebody does, nothing is written.
    pub async fn try_lock(&self) -> Result<Option<LockGuard>> {
        let Some(place) = self.queue.join_if_empty(Bytes::new()).await? else {
            return Ok(None);
        };
        place.held.tenure.certain().await?;
        Ok(Some(LockGuard { place }))
    }

    /// Waits for the lock and holds it on behalf of an actor, which is told by messages: that it has the lock, and how
    /// that ended. It is given back when the claim is dropped, or the actor ends.
    ///
    /// A message may wait in the mailbox for a while: [`Ownership::remaining`] says how long the lock is certain still.
    pub fn lock_for(&self, recipient: Recipient<LockEvent>) -> ClaimHandle {
        let hold = async |place| Ok(LockGuard { place });
        claim(self.queue.clone(), Bytes::new(), hold, recipient)
    }

    /// Does some work under the lock, and cancels it, by dropping its future, when the lock is lost.
    ///
    /// Fails as [`lock`](Self::lock) does, and with [`ErrorKind::LockLost`] or [`ErrorKind::SessionLost`] where the
    /// work was cancelled. The lock is given back in any case.
    pub async fn scope<T, F, W>(&self, work: W) -> Result<T>
    where
        W: FnOnce(Ownership) -> F,
        F: Future<Output = T>,
    {
        let guard = self.lock().await?;
        let done = tokio::select! {
            biased;
            loss = guard.lost() => return Err(loss.into()),
            done = work((*guard).clone()) => done,
        };
        // The work is done; what fails here goes on in the background.
        if let Err(error) = guard.unlock().await {
            tracing::debug!(%error, "a lock was not given back at once");
        }
        Ok(done)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("prefix", &self.queue.prefix)
            .finish_non_exhaustive()
    }
}

/// What an actor is told of the lock it wanted.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum LockEvent {
    /// It has the lock.
    Acquired(Ownership),
    /// It does not have it any more, or not for certain: somebody else may. Nothing follows.
    Lost(OwnershipLost),
    /// It was given back, or is not wanted any more. Nothing follows.
    Released,
    /// It can't be had. Nothing follows.
    Failed(Error),
}

impl From<Told> for LockEvent {
    fn from(told: Told) -> Self {
        match told {
            Told::Held(held) => Self::Acquired(held),
            Told::Lost(loss) => Self::Lost(loss),
            Told::Left => Self::Released,
            Told::Failed(error) => Self::Failed(error),
        }
    }
}

impl Hold for LockGuard {
    async fn leave(self) -> Result<()> {
        self.unlock().await
    }
}

/// The lock while it is ours. Dropped, it is given back in the background.
#[must_use = "a lock whose guard is dropped is given back"]
pub struct LockGuard {
    place: Place,
}

impl LockGuard {
    /// Gives the lock back and waits for it. Fails with [`ErrorKind::LockLost`] if it was lost before: somebody else's
    /// is never given back.
    pub async fn unlock(self) -> Result<()> {
        if self.place.leave().await? {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }
}

impl Deref for LockGuard {
    type Target = Ownership;

    fn deref(&self) -> &Ownership {
        &self.place.held
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&**self).finish()
    }
}
