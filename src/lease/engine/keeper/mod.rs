//! The keeper: keeps the leases of a client alive. One per client.
//!
//! Owns what leases share: one timer, and one keepalive stream per connection. Sends the keepalives of all leases in
//! batches, matches the responses, and performs every step of a lease that is routine. The lease's own actor
//! ([`lease_actor`](super::lease_actor)) performs the others.
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
//! Sends `KeepAliveDue`, `KeepAliveAcked`, `KeepAliveFailed`, `KeepAliveDenied` and `StopKeeping` to lease actors, and
//! `AwaitReady` to the balancer.
//!
//! States: running, and closed after `KeeperShutdown`, when it stops. While no member is ready, keepalives wait in
//! `waiting_for_member`. After a crash it continues with its state; timers are restored from the deadlines.

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
    RegisterLease, ReleaseLease, RenewLeaseOnce,
};
