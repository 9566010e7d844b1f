//! Maintenance and snapshots.

mod operations;
mod snapshot;
