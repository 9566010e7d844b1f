//! Leases.

mod faults;
mod operations;
mod outage;
mod scripted;
mod shutdown;
mod tokens;
