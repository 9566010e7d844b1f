//! Member faults, deadlines and retries.

mod deadlines;
mod member_faults;
mod overload;
mod retries;
mod retry_storm;
