//! A request for a read-write lock as a writer, and the lock while it is held.

use crate::recipes::lock_queue::guard_types;

guard_types! {
    /// A read-write lock that is held by a writer. Dereferences to its [`Ownership`](super::Ownership). Dropping it
    /// releases the lock in the background.
    ///
    /// Drop it when [`Ownership::lost`](super::Ownership::lost) resolves:
    /// [`Client::shutdown`](crate::Client::shutdown) waits for that, and leaves the lock to its TTL if the guard is not
    /// dropped in time.
    #[must_use = "dropping the guard releases the lock"]
    guard WriteGuard {
        /// Releases the lock and waits for the response. Fails with
        /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the lock was lost before; the lock of another session
        /// is never released.
        unlock
    }

    /// A request for the lock as a writer, made by [`RwLock::write`](super::RwLock::write). Awaiting it waits until no
    /// older reader or writer is left and returns a [`WriteGuard`]; [`deliver_to`](Self::deliver_to) waits for it on
    /// behalf of an actor.
    ///
    /// Dropping the future leaves the queue. Waits and fails as [`AcquireLock`](crate::recipes::mutex::AcquireLock).
    #[must_use = "the lock is requested when this is awaited or delivered to an actor"]
    request AcquireWrite {
        /// Waits for the lock as a writer and holds it on behalf of an actor. The actor receives
        /// [`LockEvent::Acquired`](super::LockEvent::Acquired) when it has the lock, and one last event when the request
        /// or the ownership has ended. The lock is released when the claim is dropped or the actor stops.
    }
}
