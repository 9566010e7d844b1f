//! An actor-based, resilient etcd v3 client runtime.
// The parts are joined by the request path; until it stands, some are only used by tests.
#![allow(dead_code, unused_imports)]

mod api;
mod auth;
mod balancer;
mod call;
mod client;
mod connection;
mod endpoints;
pub mod error;
pub mod lease;
mod options;
pub mod proto;
pub mod recipes;
pub mod retry;
mod runtime;
mod supervisor;
#[doc(hidden)]
pub mod testing;
mod transport;
mod watch;

pub use api::watch::{Events, OpenWatch, Resynced, Watch, WatchEnd, WatchHandle, WatchItem};
pub use api::{
    Answers, Done, IntoBytes, MemberRequest, MemberVersion, Request, SaveSnapshot, Saved,
    auth as auth_admin, cluster, election, health, kv, locks, maintenance, roles, snapshot, users,
};
pub use auth::Credentials;
pub use balancer::{
    BalancePolicy, Candidate, Candidates, ConnectivityChange, Connects, EndpointStatus,
    LeaderFirst, Pinned, PowerOfTwo, RoundRobin,
};
pub use client::Client;
pub use connection::ConnectivityState;
pub use error::{Code, Error, ErrorKind, Outcome, Result};
pub use lease::Lease;
pub use options::ClientBuilder;
#[cfg(feature = "tls")]
pub use transport::TlsOptions;
pub use transport::{AnswerBody, Endpoint, GrpcService};
