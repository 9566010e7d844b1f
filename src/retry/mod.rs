//! When a failed attempt is made again, and when it must not be.
//!
//! A read is tried again on anything that passes. A write is tried again only when it provably was not applied:
//! [`Outcome::NotSent`](crate::error::Outcome::NotSent), or refused for a reason that passes. Between attempts the
//! call goes straight to the next member until a quorum of them has failed, then waits a little, growing to one second.
//! What ends the trying is the call's deadline, not a count.
//!
//! | question | file |
//! |---|---|
//! | may this be tried again at all? | `table` |
//! | on which member, after what wait? | `timing` |
//! | how much may the whole client retry? | `budget` |
//! | what does the user's own policy say? | `policy`, `service_config` |
//! | what does the server ask for? | `pushback` |
//! | all of it, over the life of one call | `attempts` |
//!
//! A call that has to wait asks the `RetryActor`: `ScheduleRetry` gives a ticket back when it is time. The actor hears
//! `MemberReady` from the balancer, and then lets the waiting calls go early.

use actix::Message;
use tokio::{sync::oneshot, time::Instant};

pub(crate) mod actor;
pub(crate) mod attempts;
pub(crate) mod budget;
pub(crate) mod policy;
pub(crate) mod pushback;
pub(crate) mod service_config;
pub(crate) mod table;
pub(crate) mod timing;

pub use crate::proto::rpc::RpcClass;
pub use budget::BudgetLimits;
pub use policy::{Attempt, NoRetry, RetryDecision, RetryPolicy, StandardRetry};
pub use pushback::Pushback;
pub use service_config::ServiceConfig;

/// Give the ticket back when it is time for the next attempt.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ScheduleRetry {
    /// When the backoff ends.
    pub(crate) due: Instant,
    /// When the budget allows it: not even a member that becomes ready makes it earlier.
    pub(crate) not_before: Instant,
    pub(crate) ticket: oneshot::Sender<()>,
}

/// A member became ready: who waits need not wait for its backoff.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct MemberReady;
