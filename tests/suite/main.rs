//! Everything that needs a server: one binary, a module a topic.

mod bad_input;
mod balance;
mod classification;
mod connect;
mod endpoints;
mod failover;
mod kv;
mod shutdown;
mod storm;
mod supervision;
mod traffic;
mod wire;
