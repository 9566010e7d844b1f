//! Leases: operations, keepalives, faults and shutdown.

mod adoption;
mod auth_tokens;
mod faults;
mod operations;
mod outage;
mod scripted;
mod shutdown;
