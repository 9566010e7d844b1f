//! Member faults, deadlines and retries.

mod deadlines;
mod hedging;
mod member_faults;
mod retries;
mod retry_storm;
mod slow_member;
