//! Which errors a recipe waits out, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind},
    retry::{RetryDecision, decision::remedy},
};

/// Delay before a failed request is repeated.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Returns whether the same request may succeed later. A recipe repeats it for as long as its session lives, so the
/// deadline of one call does not end it.
pub(super) fn is_temporary(error: &Error) -> bool {
    remedy(error.kind()) != RetryDecision::Fail
        || matches!(
            error.kind(),
            ErrorKind::DeadlineExceeded | ErrorKind::Overloaded
        )
}

/// Returns the time `timeout` from now. A timeout beyond the range of the clock counts as 30 years.
pub(super) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout)
        .unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 24 * 60 * 60))
}
