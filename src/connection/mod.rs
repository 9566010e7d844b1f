//! One supervised HTTP/2 connection per endpoint.
//!
//! A [`ConnectionActor`] dials its endpoint, drives the connection, probes the member behind it and reconnects after a
//! failure. If the member cannot be used, it also dials a replacement, because behind a load balancer the next
//! connection may lead to another member. Its [`ConnectivityState`] is `Idle`, `Connecting`, `Ready`, `NoLeader`,
//! `TransientFailure` or `Shutdown`.
//!
//! It receives
//! - from its owner, the balancer: [`Connect`](messages::Connect), [`ReconnectSooner`](messages::ReconnectSooner),
//!   [`Disconnect`](messages::Disconnect), [`Probe`](messages::Probe), [`RoutineProbe`](messages::RoutineProbe) and
//!   [`Drain`](messages::Drain);
//! - from callers, through [`Connection`]: [`Suspect`](messages::Suspect), `StreamOpened` and
//!   [`ForeignClusterDetected`](messages::ForeignClusterDetected);
//! - from its own tasks and timers: `DialFinished`, `ReconnectDue`, `ReplacementDue`, `ProbeDue`, `ProbeLate`,
//!   `ProbeFinished`, `ServingChanged`, `ClosedToRequests` and `ConnectionLost`.
//!
//! It sends [`ConnectionStateChanged`](messages::ConnectionStateChanged),
//! [`MemberSuspected`](messages::MemberSuspected), [`StreamsStarted`](messages::StreamsStarted) and `ActorFailed` to its
//! owner, through a [`ConnectionObserver`].
//!
//! Every attempt to connect gets a new generation, and messages about older generations are ignored: a late message
//! cannot close a working connection. A connection is used only after the member has responded to an RPC on it, because
//! the kernel of a frozen process still accepts TCP connections.
//!
//! Suspicion is not proof. A late or failed probe stops *new* requests to a connection and leads to a replacement.
//! Requests in flight end early only on evidence about them: a broken connection, a lost leader, or silence on the wire
//! for longer than the round trips of the link explain.
//!
//! The decisions are pure code:
//! - [`state_machine`] and [`reconnect_delay`]: states, and when to reconnect or to dial a replacement;
//! - [`member_health`]: whether a member can be used;
//! - [`cluster_choice`]: the cluster to which the client belongs;
//! - [`liveness`] and [`round_trips`]: how long to wait on this link;
//! - [`probe_schedule`], [`probe_budget`] and [`probe_timeout`]: when to probe, and when a member is unresponsive;
//! - [`raft_term`]: whether a write may be lost with its leader;
//! - [`server_version`]: faults of some releases of etcd;
//! - [`token_refusals`]: whether a refused token is the member's fault.

mod active_connection;
mod actor;
mod address_attempts;
mod cluster_choice;
mod cluster_id;
mod cluster_identity;
mod connection_context;
mod connection_handle;
mod connectivity;
mod driver_task;
mod first_contact;
mod handlers;
mod health_service;
mod ignored_token;
mod lifecycle;
mod liveness;
mod member_health;
pub(crate) mod messages;
mod open_connections;
mod probe;
mod probe_budget;
mod probe_schedule;
mod probe_timeout;
mod probing;
mod raft_term;
mod reconnect_delay;
mod replacement;
mod retired;
mod round_trips;
mod server_version;
mod state_machine;
pub(crate) mod token;
mod token_refusals;

pub(crate) use actor::{ConnectionActor, ConnectionObserver};
pub(crate) use cluster_choice::Voter;
pub(crate) use cluster_id::{ClusterId, foreign_cluster_error};
pub(crate) use connection_context::{ClusterView, ConnectionContext, SharedProbeBudget};
pub(crate) use connection_handle::{Connection, StreamRegistration, SuspicionGuard};
pub use connectivity::ConnectivityState;
pub(crate) use connectivity::EndpointId;
pub(crate) use first_contact::cluster_at;
pub(crate) use liveness::LinkTiming;
pub use liveness::Liveness;
pub(crate) use member_health::{MemberHealth, OtherMembers, RaftStatus, Verdict};
pub(crate) use open_connections::OpenConnections;
pub(crate) use probe::responds_to_token;
pub(crate) use raft_term::{TermMark, leader_changed};
pub(crate) use server_version::ServerVersion;
pub(crate) use token_refusals::RefusalDecision;
