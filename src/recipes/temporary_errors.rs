//! Which errors a recipe retries, and after which delay.

use std::time::Duration;

pub(super) use crate::retry::availability::is_temporary;

/// Delay before a failed request is repeated.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);
