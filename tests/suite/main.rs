//! Tests that need a server: one binary, one module per topic.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "tests fail by panicking, and a long scenario reads best in one function"
)]

mod actor;
mod auth;
mod client;
mod cluster;
mod connection;
mod docs;
mod errors;
mod failover;
mod kv;
mod layers;
mod lease;
mod maintenance;
mod proxies;
mod recipes;
mod support;
mod watch;
