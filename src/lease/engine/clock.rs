//! The monotonic clock of leases.

use std::time::{Duration, Instant};

use crate::call::MAX_TIMEOUT;

/// Returns the current time of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns `from + by`, or `from + MAX_TIMEOUT` if the sum overflows.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by).unwrap_or_else(|| from + MAX_TIMEOUT)
}
