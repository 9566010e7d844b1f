//! A clock that all processes of a machine share, and that is never set.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the machine started. Processes may compare their times.
pub fn time_since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).expect("the clock started at zero")
}
