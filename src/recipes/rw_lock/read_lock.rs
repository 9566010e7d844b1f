//! A request for a read-write lock as a reader, and the lock while it is held.

use crate::recipes::lock_queue::guard_types;

guard_types! {
    /// A read-write lock that is held by a reader. Dereferences to its [`Ownership`](super::Ownership). Dropping it
    /// releases the lock in the background.
    ///
    /// Drop it when [`Ownership::lost`](super::Ownership::lost) resolves:
    /// [`Client::shutdown`](crate::Client::shutdown) waits for that, and leaves the lock to its TTL if the guard is not
    /// dropped in time.
    #[must_use = "dropping the guard releases the lock"]
    guard ReadGuard {
        /// Releases the lock and waits for the response. Fails with
        /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the lock was lost before.
        unlock
    }

    /// A request for the lock as a reader, made by [`RwLock::read`](super::RwLock::read). Awaiting it waits until no
    /// older writer is left and returns a [`ReadGuard`]; [`deliver_to`](Self::deliver_to) waits for it on behalf of an
    /// actor.
    ///
    /// Dropping the future leaves the queue. Waits and fails as [`AcquireLock`](crate::recipes::mutex::AcquireLock).
    #[must_use = "the lock is requested when this is awaited or delivered to an actor"]
    request AcquireRead {
        /// Waits for the lock as a reader and holds it on behalf of an actor. The actor receives
        /// [`LockEvent::Acquired`](super::LockEvent::Acquired) when it has the lock, and one last event when the request
        /// or the ownership has ended. The lock is released when the claim is dropped or the actor stops.
    }
}
