//! Which errors a recipe retries, and after which delay.

use std::time::Duration;

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
