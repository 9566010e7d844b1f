//! A request for a lock.

use std::{fmt, future::IntoFuture};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{ClaimHandle, LockGuard, Ownership, OwnershipLost};
use crate::{
    error::{Error, Result},
    recipes::lock_queue::{ClaimEvent, LockQueue, claim},
    request::ResponseFuture,
};

/// A request for a lock, made by [`Mutex::lock`](super::Mutex::lock). Awaiting it waits for the lock and returns a
/// [`LockGuard`]; [`deliver_to`](Self::deliver_to) waits for it on behalf of an actor.
///
/// Dropping the future leaves the queue. The wait continues through outages for as long as the session lives; if the
/// session [heals](crate::recipes::session::SessionBuilder::heal), it continues at the end of the queue after a loss of
/// the lease. It fails
/// - with [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) as soon as the session is lost,
/// - with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the session's key in the queue is deleted,
/// - with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked) if an older key under the lock's name was not put by
///   a request for the lock; the error names the key,
/// - with [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) if the user may not read and write the
///   keys,
/// - with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes.
#[derive(Clone)]
#[must_use = "the lock is requested when this is awaited or delivered to an actor"]
pub struct AcquireLock {
    queue: LockQueue,
}

impl AcquireLock {
    pub(super) fn new(queue: LockQueue) -> Self {
        Self { queue }
    }

    /// Waits for the lock and holds it on behalf of an actor. The actor receives [`LockEvent::Acquired`] when it has
    /// the lock, and one last event when the request or the ownership has ended. The lock is released when the claim is
    /// dropped or the actor stops.
    ///
    /// An event may wait in the mailbox: [`Ownership::remaining`] returns how long the lock is still certain.
    pub fn deliver_to(self, recipient: Recipient<LockEvent>) -> ClaimHandle {
        let client = self.queue.client.clone();
        let queue = self.queue.for_background();
        let acquire = async move |cancel: &mut oneshot::Receiver<()>| {
            let entry = queue.join_and_wait(Bytes::new(), cancel).await?;
            entry.map(LockGuard::new).transpose()
        };
        claim(&client, acquire, recipient)
    }

    async fn acquire(self) -> Result<LockGuard> {
        let entry = self.queue.acquire(Bytes::new()).await?;
        LockGuard::new(entry)
    }
}

impl IntoFuture for AcquireLock {
    type Output = Result<LockGuard>;
    type IntoFuture = ResponseFuture<LockGuard>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

impl fmt::Debug for AcquireLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireLock")
            .field("prefix", &self.queue.prefix)
            .finish_non_exhaustive()
    }
}

/// An event of a lock request, sent to the actor that the lock is for.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum LockEvent {
    /// The actor has the lock.
    Acquired(Ownership),
    /// The actor no longer has the lock, or may no longer have it. This is the last event.
    Lost(OwnershipLost),
    /// The lock was released, or the request was cancelled. This is the last event.
    Released,
    /// The lock cannot be acquired. This is the last event.
    Failed(Error),
}

impl From<ClaimEvent> for LockEvent {
    fn from(event: ClaimEvent) -> Self {
        match event {
            ClaimEvent::Acquired(ownership) => Self::Acquired(ownership),
            ClaimEvent::Lost(loss) => Self::Lost(loss),
            ClaimEvent::Released => Self::Released,
            ClaimEvent::Failed(error) => Self::Failed(error),
        }
    }
}
