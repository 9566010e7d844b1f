//! Everything that needs a server: one binary, a module a topic.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "a test says what it expects by failing, and tells one story from its beginning to its end"
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
mod lease;
mod maintenance;
mod recipes;
mod support;
mod watch;
