//! The monotonic clock of leases.

use std::time::{Duration, Instant};

/// Returns the current time of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns `from + by`, or a time 30 years after `from` if the sum overflows.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by)
        .unwrap_or_else(|| from + Duration::from_secs(946_080_000))
}
