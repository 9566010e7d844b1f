//! A request for a permit, and the permit while it is held.

use crate::recipes::lock_queue::guard_types;

guard_types! {
    /// A permit of a semaphore. Dereferences to its [`Ownership`](super::Ownership). Dropping it releases the permit in
    /// the background.
    ///
    /// Drop it when [`Ownership::lost`](super::Ownership::lost) resolves:
    /// [`Client::shutdown`](crate::Client::shutdown) waits for that, and leaves the permit to its TTL if it is not
    /// dropped in time.
    #[must_use = "dropping the permit releases it"]
    guard Permit {
        /// Releases the permit and waits for the response. Fails with
        /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the permit was lost before.
        release
    }

    /// A request for a permit, made by [`Semaphore::acquire`](super::Semaphore::acquire). Awaiting it waits for a permit
    /// and returns a [`Permit`]; [`deliver_to`](Self::deliver_to) waits for it on behalf of an actor.
    ///
    /// Dropping the future leaves the queue. Waits and fails as [`AcquireLock`](crate::recipes::mutex::AcquireLock), and
    /// with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the semaphore has no permits.
    #[must_use = "the permit is requested when this is awaited or delivered to an actor"]
    request AcquirePermit {
        /// Waits for a permit and holds it on behalf of an actor. The actor receives
        /// [`LockEvent::Acquired`](super::LockEvent::Acquired) when it has the permit, and one last event when the
        /// request or the ownership has ended. The permit is released when the claim is dropped or the actor stops.
    }
}
