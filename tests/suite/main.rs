//! Everything that needs a server: one binary, a module a topic.

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
mod wire;
