//! Leases: operations, keepalives, faults and shutdown.

mod adoption;
mod auth_tokens;
mod faults;
mod lease_chaos;
mod operations;
mod outage;
mod pauses;
mod scripted;
mod shutdown;
