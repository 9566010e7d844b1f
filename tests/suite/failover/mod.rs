//! Member faults, deadlines and retries.

mod deadlines;
mod hedging;
mod member_faults;
mod overload;
mod retries;
mod retry_storm;
mod slow_member;
