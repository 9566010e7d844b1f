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

mod bad_input;
mod balance;
mod classification;
mod connect;
mod endpoints;
mod failover;
mod kv;
mod lease;
mod lease_faults;
mod lease_record;
mod lease_scripted;
mod session;
mod shutdown;
mod storm;
mod supervision;
mod traffic;
mod wait;
mod wire;
