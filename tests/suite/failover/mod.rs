//! Member faults, deadlines and retries.

mod deadlines;
mod member_faults;
mod retries;
mod retry_storm;
