//! A request for a lock, the lock while it is held, and the events of a lock.

use actix::Message;

use super::{Ownership, OwnershipLost};
use crate::{
    error::Error,
    recipes::lock_queue::{ClaimEvent, guard_types},
};

guard_types! {
    /// A lock that is held. Dereferences to its [`Ownership`]. Dropping it releases the lock in the background.
    ///
    /// Drop it when [`Ownership::lost`] resolves: [`Client::shutdown`](crate::Client::shutdown) waits for that, and
    /// leaves the lock to its TTL if the guard is not dropped in time.
    #[must_use = "dropping the guard releases the lock"]
    guard LockGuard {
        /// Releases the lock and waits for the response. Fails with
        /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the lock was lost before; the lock of another session
        /// is never released.
        unlock
    }

    /// A request for a lock, made by [`Mutex::lock`](super::Mutex::lock). Awaiting it waits for the lock and returns a
    /// [`LockGuard`]; [`deliver_to`](Self::deliver_to) waits for it on behalf of an actor.
    ///
    /// Dropping the future leaves the queue. The wait continues through outages for as long as the session lives; if the
    /// session [heals](crate::recipes::session::SessionBuilder::heal), it continues at the end of the queue after a loss
    /// of the lease. It fails
    /// - with [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) as soon as the session is lost,
    /// - with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the session's key in the queue is deleted,
    /// - with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked) if an older key under the lock's name was not put
    ///   by a request for the lock; the error names the key,
    /// - with [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) if the user may not read and write the
    ///   keys,
    /// - with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of
    ///   slashes.
    #[must_use = "the lock is requested when this is awaited or delivered to an actor"]
    request AcquireLock {
        /// Waits for the lock and holds it on behalf of an actor. The actor receives [`LockEvent::Acquired`] when it has
        /// the lock, and one last event when the request or the ownership has ended. The lock is released when the claim
        /// is dropped or the actor stops.
        ///
        /// An event may wait in the mailbox: [`Ownership::remaining`] returns how long the lock is still certain.
    }
}

/// An event of a request for a lock or a permit, sent to the actor that it is for.
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
