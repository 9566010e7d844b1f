//! Which errors a recipe retries, and after which delay.

use std::time::Duration;

use crate::{
    error::{Error, ErrorKind},
    retry::{RetryDecision, decision::remedy},
};

/// Delay before a failed request is repeated.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Returns whether the same request may succeed later. A recipe repeats it for as long as its session lives, so the
/// deadline of one call does not end it. A refused token is not temporary: the call has renewed it already.
pub(super) fn is_temporary(error: &Error) -> bool {
    match remedy(error.kind()) {
        RetryDecision::NextMember | RetryDecision::Backoff | RetryDecision::After(_) => true,
        RetryDecision::RenewToken => false,
        RetryDecision::Fail => matches!(
            error.kind(),
            ErrorKind::DeadlineExceeded | ErrorKind::Overloaded
        ),
    }
}
