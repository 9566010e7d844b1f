//! An actor-based, resilient etcd v3 client runtime.
// The parts are joined by the request path; until it stands, some are only used by tests.
#![allow(dead_code, unused_imports)]

mod balancer;
mod connection;
pub mod error;
pub mod proto;
mod runtime;
mod supervisor;
mod transport;
