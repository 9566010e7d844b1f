//! Failing members, deadlines and retries.

mod deadlines;
mod members;
mod retries;
mod retry_storm;
