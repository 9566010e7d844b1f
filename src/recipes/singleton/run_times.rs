//! Decides when a singleton may start, and which failures of its campaigns are logged.

use std::time::{Duration, Instant};

use crate::error::Error;

/// Interval at which the same failure is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// When the actor of a singleton may start and must stop, measured in the remaining time of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunTimes {
    ttl: Duration,
    /// The actor is stopped when no more than this remains.
    pub(super) margin: Duration,
}

impl RunTimes {
    /// Returns `None` if the margin is more than half of the TTL.
    pub(super) fn new(ttl: Duration, margin: Option<Duration>) -> Option<Self> {
        let margin = margin.unwrap_or(ttl / 3);
        (margin <= ttl / 2).then_some(Self { ttl, margin })
    }

    /// Returns whether enough time remains to start the actor: half of the way between the margin, at which it would be
    /// stopped again, and two thirds of the TTL, which a lease that is renewed on time always has.
    pub(super) fn may_start(&self, remaining: Duration) -> bool {
        remaining >= self.ttl / 3 + self.margin / 2
    }
}

/// Decides which failures are logged: each new one, and a repeated one once per minute.
#[derive(Debug, Default)]
pub(super) struct CampaignFailures {
    last_logged: Option<(String, Instant)>,
}

impl CampaignFailures {
    pub(super) fn must_log(&mut self, error: &Error, now: Instant) -> bool {
        let text = error.to_string();
        let is_recent = |(logged, at): &(String, Instant)| {
            *logged == text && now.saturating_duration_since(*at) < LOG_INTERVAL
        };
        if self.last_logged.as_ref().is_some_and(is_recent) {
            return false;
        }
        self.last_logged = Some((text, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn start_needs_more_time_than_stop() {
        let times = |margin| RunTimes::new(6 * SECOND, margin).unwrap();
        for margin in [None, Some(Duration::ZERO), Some(SECOND), Some(3 * SECOND)] {
            let times = times(margin);
            assert!(!times.may_start(times.margin), "{times:?}");
            assert!(times.may_start(4 * SECOND), "a renewed lease: {times:?}");
        }
        let default = times(None);
        assert_eq!(default.margin, 2 * SECOND);
        assert!(default.may_start(3 * SECOND));
        assert!(!default.may_start(Duration::from_millis(2_999)));
    }

    #[test]
    fn margin_is_at_most_half_of_ttl() {
        assert!(RunTimes::new(SECOND, Some(SECOND / 2)).is_some());
        assert_eq!(RunTimes::new(SECOND, Some(SECOND)), None);
    }

    #[test]
    fn repeated_failure_is_logged_once_per_minute() {
        let (mut failures, begin) = (CampaignFailures::default(), Instant::now());
        let (first, second) = (Error::invalid("first"), Error::invalid("second"));
        assert!(failures.must_log(&first, begin));
        assert!(!failures.must_log(&first, begin + LOG_INTERVAL / 2));
        assert!(failures.must_log(&second, begin + LOG_INTERVAL / 2));
        assert!(failures.must_log(&first, begin + LOG_INTERVAL / 2));
        assert!(!failures.must_log(&first, begin + LOG_INTERVAL));
        assert!(failures.must_log(&first, begin + 2 * LOG_INTERVAL));
    }
}
