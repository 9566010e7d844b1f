//! Chooses the member for each request and reports the state of every endpoint.
//!
//! A [`BalancePolicy`] chooses among the ready members, on the caller's task. [`ConnectivityState`],
//! [`EndpointStatus`] and [`ConnectivityChange`] describe the connections.
//
// The `BalancerActor` owns one `ConnectionActor` per endpoint. After each change it publishes an immutable `ReadySet`,
// which every caller reads without a lock. It is open until it receives `BalancerShutdown`, then closed.
//
// It receives
// - from connection actors: `ConnectionStateChanged`, `MemberSuspected`, `StreamsStarted` and `ActorFailed`;
// - from the client: `UpdateEndpoints`, `SubscribeToChanges`, `SendChangesTo` and `BalancerShutdown`;
// - from calls: `AwaitReady` and `ConnectEndpoint`;
// - from its own timers: `SpeedUpReconnects`, `NamedEndpointsExpired` and `CheckStreams`.
//
// It sends `Connect`, `Disconnect`, `ReconnectSooner`, `Probe`, `RoutineProbe` and `Drain` to connection actors,
// `MemberReady` to the retry actor, and `ConnectivityChange` to subscribers.
//
// The decisions are pure code: `connection_plan` (which endpoints to connect), `stream_checks` (which members to check
// for streams, and when) and `tls_downgrade` (which endpoints may be used beside encrypted ones).

mod actor;
mod connection_plan;
mod endpoint_status;
mod endpoint_updates;
mod handlers;
pub(crate) mod messages;
mod named_endpoints;
mod policies;
mod ready_set;
mod stream_checks;
mod tls_downgrade;

pub use crate::connection::ConnectivityState;
pub(crate) use actor::BalancerActor;
pub use endpoint_status::{ConnectivityChange, EndpointStatus};
pub use policies::{
    BalancePolicy, ConnectionMode, LeaderFirst, Pinned, PowerOfTwo, ReadyEndpoint, ReadyEndpoints,
    RoundRobin,
};
pub(crate) use ready_set::{EndpointView, ReadySet, ReadySetCell};
pub(crate) use tls_downgrade::split_tls_downgrades;
