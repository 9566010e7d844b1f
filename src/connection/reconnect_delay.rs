//! Delays before a reconnect and before a replacement. Randomness is an argument.

use std::time::Duration;

use crate::runtime::backoff::Backoff;

/// 50 ms × 1.6 per failure, up to 3 s, ± 20 %.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(3))
    .factor(1.6)
    .jitter(0.2);
/// Longest reconnect delay while calls wait for a ready member.
const MAX_DELAY_URGENT: Duration = Duration::from_millis(150);

/// Delay before a replacement is dialled: 100 ms × 2 per replacement that was not better, up to 5 s, ± 20 %.
const REPLACEMENT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
    .factor(2.0)
    .jitter(0.2);
/// Longest delay before a replacement while calls wait for a ready member.
const MAX_REPLACEMENT_DELAY_URGENT: Duration = Duration::from_secs(1);

/// Returns the delay before the next attempt to connect. `urgent` is whether calls wait for a ready member.
pub(super) fn reconnect_delay(failures: u32, urgent: bool, random: f64) -> Duration {
    let backoff = if urgent {
        RECONNECT.max(MAX_DELAY_URGENT)
    } else {
        RECONNECT
    };
    backoff.delay(failures, random)
}

/// Returns the delay before the next replacement. `rejected` is the number of earlier ones that were not better.
pub(super) fn replacement_delay(rejected: u32, urgent: bool, random: f64) -> Duration {
    let backoff = if urgent {
        REPLACEMENT.max(MAX_REPLACEMENT_DELAY_URGENT)
    } else {
        REPLACEMENT
    };
    backoff.delay(rejected, random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delays_are_bounded_and_never_zero(failures in 0u32..1000, urgent: bool, random in 0.0f64..=1.0) {
            let delay = reconnect_delay(failures, urgent, random);
            prop_assert!(delay >= Duration::from_millis(40));
            let longest = if urgent { 150 } else { 3000 };
            prop_assert!(delay <= Duration::from_millis(longest * 12 / 10));
        }
    }
}
