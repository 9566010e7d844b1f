//! Retries: when a failed attempt is repeated, and when it must not be.
//!
//! A read is retried after every transient error. A write is retried only if it provably was not applied: its outcome
//! is [`NotSent`](crate::Outcome::NotSent), or it was rejected for a transient reason. [`RpcClass`] lists the writes
//! that are retried like reads. A call is retried at once on the next member until a quorum of members has failed, then
//! after a delay that grows to one second. The number of retries is not limited: a call is retried until its deadline.
//!
//! A request that fails is retried; a request that is only *slow* is hedged, if it may be repeated: another member gets
//! a copy, and the first response wins. See [`RetryPolicy`].
//!
//! | [`RpcClass`] | requests | retried if its outcome is unknown | hedged if slow |
//! |---|---|---|---|
//! | `Read` | get, transaction without writes, member list, … | yes | yes |
//! | `Idempotent` | login, resignation from an election, disarming an alarm | yes | yes |
//! | `Grant` | lease grant with a random id | yes | yes |
//! | `Revoke` | lease revocation | yes | yes |
//! | `Mutation` | put, delete, transaction with writes, … | no | no |
//!
//! Requests that name their member are not hedged, and neither are locks and campaigns on the server, which wait for
//! other clients. A write that waits for a free stream has not been sent: it goes to the first member that has one.
//
// | question | module |
// |---|---|
// | may this be retried at all? | `decision` |
// | on which member, after which delay? | `quorum_backoff` |
// | how much may the whole client retry and hedge? | `budget` |
// | what does the user's policy decide? | `policy`, `service_config` |
// | what does the server request? | `pushback` |
// | how do these apply to the failures of one call? | `failure_log` |
// | may the owner of a request repeat it until the cluster is reachable? | `availability` |
//
// A call that has to wait sends `ScheduleRetry` to the `RetryActor` and receives a ticket when the delay is over. The
// balancer sends `MemberReady`, which releases waiting calls early. The only state of the actor is the list of waiting
// tickets. If a ticket is lost in a crash, its call waits without the actor.

pub(crate) mod actor;
pub(crate) mod availability;
pub(crate) mod budget;
pub(crate) mod decision;
pub(crate) mod failure_log;
mod messages;
pub(crate) mod policy;
pub(crate) mod pushback;
mod quorum_backoff;
pub(crate) mod service_config;

pub use crate::proto::rpc::RpcClass;
pub use budget::BudgetLimits;
pub use decision::RetryDecision;
pub(crate) use messages::{MemberReady, ScheduleRetry};
pub use policy::{FailedAttempt, NoRetry, RetryPolicy, StandardRetry};
pub use pushback::Pushback;
pub use service_config::ServiceConfig;
