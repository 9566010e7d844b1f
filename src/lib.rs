//! An actor-based, resilient etcd v3 client runtime.
// The parts are joined by the request path; until it stands, some are only used by tests.
#![allow(dead_code, unused_imports)]

mod auth;
mod balancer;
mod call;
mod connection;
pub mod error;
pub mod proto;
pub mod retry;
mod runtime;
mod supervisor;
mod transport;

pub use balancer::{
    BalancePolicy, Candidate, Candidates, Connects, ConnectivityChange, EndpointStatus,
    LeaderFirst, Pinned, PowerOfTwo, RoundRobin,
};
pub use connection::ConnectivityState;
