//! The keeper: keeps the leases of a client alive. One per client.
//!
//! Owns the timer and the keepalive streams, one per connection, that all leases share. Sends the keepalives of all
//! leases in batches, matches the responses, and performs every routine step of a lease. The lease's own actor
//! ([`lease_actor`](super::lease_actor)) performs the other steps.
//!
//! | receives | from |
//! |---|---|
//! | `KeepLease`, `RegisterLease`, `ReleaseLease` | the handle of a lease |
//! | `RenewLeaseOnce` | a `keep_alive_once` request |
//! | `KeeperShutdown` | the client |
//! | `KeptLeasesChanged` | lease actors, at most one per batch |
//! | `KeepAliveResponsesReceived`, `KeepAliveStreamEnded` | the task that reads a stream |
//! | `KeeperTimerFired`, `ReadyWaitEnded` | itself |
//!
//! Sends `KeepAliveDue`, `KeepAliveResponded`, `KeepAliveFailed`, `KeepAliveDenied`, `ClusterLeft` and `StopKeeping` to
//! lease actors, and `AwaitReady` to the balancer.
//!
//! States: running; closed after `KeeperShutdown`, which also stops the actor. While no member is ready, keepalives
//! wait in `waiting_for_member`. After a panic it continues with its state; timers are restored from the deadlines.

mod actor;
mod handlers;
mod messages;
mod sending;
mod shutdown;
mod stream_upkeep;

pub(crate) use actor::KeeperActor;
#[cfg(feature = "test-faults")]
pub(crate) use messages::{CrashLease, CrashWhenDue};
pub(crate) use messages::{
    KeepAliveResponsesReceived, KeepAliveStreamEnded, KeepLease, KeeperShutdown, KeptLeasesChanged,
    LeaseOrigin, OnceRenewal, RegisterLease, ReleaseLease, RenewLeaseOnce,
};
