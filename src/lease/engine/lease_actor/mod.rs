//! The actor of one kept lease. Makes every decision that is not routine.
//!
//! The lease's deadline is in [`KeptLeases`](super::kept_leases::KeptLeases), where the keeper makes the routine
//! decisions. A panic of this actor does not affect it.
//!
//! | receives | from the keeper, when |
//! |---|---|
//! | `KeepAliveDue` | a retry, the deadline or the time to give up is due, or a response is late |
//! | `KeepAliveResponded` | a response needs a decision: the lease does not exist, or the response is late |
//! | `KeepAliveFailed` | the stream of a keepalive ended without a response |
//! | `KeepAliveDenied` | the server refused the keepalive to this user |
//! | `ClusterLeft` | the client follows another cluster |
//! | `StopKeeping` | the lease is kept no longer |
//!
//! Sends `Renewed`, `AtRisk` and `Lost` to the subscribers of the lease, and keepalives and check times to the keeper.
//!
//! States: held, at risk (the deadline has passed), ended. See [`deadline`](super::deadline). The actor stops when the
//! lease has ended.

mod actor;
mod messages;

pub(crate) use actor::LeaseActor;
pub(crate) use messages::{
    ClusterLeft, KeepAliveDenied, KeepAliveDue, KeepAliveFailed, KeepAliveResponded, StopKeeping,
};
