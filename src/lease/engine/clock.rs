//! The clock of leases: monotonic, and running while the machine is suspended.
//!
//! A lease expires on the server while this machine is suspended. So every time in the lease engine is a time of this
//! clock: the monotonic time plus the [`suspended_time`]. Users get [monotonic](to_monotonic) times.

use std::time::{Duration, Instant};

use crate::{call::MAX_TIMEOUT, runtime::suspended_time::suspended_time};

/// Returns the current time of tokio's clock, which tests can pause, plus the time that the machine was suspended.
pub(crate) fn now() -> Instant {
    with_suspension(tokio::time::Instant::now().into_std(), suspended_time())
}

/// Returns the monotonic time that a time of this clock corresponds to, unless the machine is suspended before then.
pub(crate) fn to_monotonic(at: Instant) -> Instant {
    without_suspension(at, suspended_time())
}

fn with_suspension(monotonic: Instant, suspended: Duration) -> Instant {
    later(monotonic, suspended)
}

fn without_suspension(at: Instant, suspended: Duration) -> Instant {
    at.checked_sub(suspended).unwrap_or(at)
}

/// Returns `from + by`, or `from + MAX_TIMEOUT` if the sum overflows.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by).unwrap_or_else(|| from + MAX_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::engine::deadline::{Deadline, Step};

    #[test]
    fn suspended_machine_loses_time_of_its_lease() {
        let seconds = Duration::from_secs;
        let start = Instant::now();
        let mut lease = Deadline::granted(10, start, start, 1.0);
        // One second of running time, before and after the machine was suspended for 20 s.
        let monotonic = start + seconds(1);
        let awake = with_suspension(monotonic, Duration::ZERO);
        assert_eq!(lease.remaining(awake), seconds(9));
        assert!(matches!(lease.next_step(awake, 0.5), Step::Wait { .. }));
        let resumed = with_suspension(monotonic, seconds(20));
        assert_eq!(lease.remaining(resumed), Duration::ZERO);
        assert!(matches!(lease.next_step(resumed, 0.5), Step::AtRisk { .. }));
        assert_eq!(without_suspension(resumed, seconds(20)), monotonic);
    }
}
