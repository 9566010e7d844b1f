//! Estimates the round trip time of one connection.
//!
//! Probes provide samples, smoothed as TCP does it (RFC 6298): a mean and a mean deviation. A fast sample ends the effect
//! of slow ones at once, because the link did not become fast: the member was frozen or busy, for example during the
//! first contact. A response to any other request is an upper bound only, because it includes the time that the member
//! needed for the request.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// After a sample, the mean is at most this many times the sample, because the round trips of one link vary.
const MAX_VARIATION: u64 = 2;

/// Round trip time of a connection. Updated by every response, so it uses atomics instead of a lock.
#[derive(Debug)]
pub(crate) struct RoundTrips {
    mean_micros: AtomicU64,
    deviation_micros: AtomicU64,
}

impl RoundTrips {
    /// Starts with the first sample.
    pub(crate) fn new(first: Duration) -> Self {
        let first = micros(first);
        Self {
            mean_micros: AtomicU64::new(first),
            deviation_micros: AtomicU64::new(first / 2),
        }
    }

    pub(crate) fn mean(&self) -> Duration {
        Duration::from_micros(self.mean_micros.load(Ordering::Relaxed))
    }

    pub(crate) fn deviation(&self) -> Duration {
        Duration::from_micros(self.deviation_micros.load(Ordering::Relaxed))
    }

    /// Adds the round trip time of a probe.
    pub(super) fn add_sample(&self, sample: Duration) {
        let sample = micros(sample);
        let mean = self.mean_micros.load(Ordering::Relaxed);
        let deviation = self.deviation_micros.load(Ordering::Relaxed);
        let mut new_deviation = weighted(deviation, 3, mean.abs_diff(sample));
        let mut new_mean = weighted(mean, 7, sample);
        if sample < mean {
            new_mean = new_mean.min(sample.saturating_mul(MAX_VARIATION));
            new_deviation = new_deviation.min(sample);
        }
        self.deviation_micros
            .store(new_deviation, Ordering::Relaxed);
        self.mean_micros.store(new_mean, Ordering::Relaxed);
    }

    /// Lowers the estimate if the response to a request took less time.
    pub(crate) fn add_upper_bound(&self, elapsed: Duration) {
        let elapsed = micros(elapsed);
        if elapsed >= self.mean_micros.load(Ordering::Relaxed) {
            return;
        }
        self.mean_micros.store(elapsed, Ordering::Relaxed);
        self.deviation_micros
            .fetch_min(elapsed / 2, Ordering::Relaxed);
    }
}

/// Returns the mean of `weight` times `old` and once `new`.
fn weighted(old: u64, weight: u64, new: u64) -> u64 {
    old.saturating_mul(weight).saturating_add(new) / (weight + 1)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn equal_samples_reduce_the_deviation() {
        let round_trips = RoundTrips::new(ms(700));
        assert_eq!(round_trips.deviation(), ms(350));
        for _ in 0..20 {
            round_trips.add_sample(ms(700));
        }
        assert_eq!(round_trips.mean(), ms(700));
        assert!(round_trips.deviation() < ms(5));
    }

    #[test]
    fn mean_follows_a_link_that_becomes_slow() {
        let round_trips = RoundTrips::new(ms(1));
        for _ in 0..40 {
            round_trips.add_sample(ms(500));
        }
        assert!(round_trips.mean() > ms(490));
    }

    #[test]
    fn fast_response_lowers_a_high_first_sample() {
        let round_trips = RoundTrips::new(ms(900));
        round_trips.add_upper_bound(ms(2));
        assert_eq!(round_trips.mean(), ms(2));
        assert_eq!(round_trips.deviation(), ms(1));
    }

    #[test]
    fn fast_probe_ends_effect_of_slow_first_contact() {
        let round_trips = RoundTrips::new(ms(1300));
        round_trips.add_sample(ms(10));
        assert_eq!(round_trips.mean(), ms(20));
        assert_eq!(round_trips.deviation(), ms(10));
    }

    #[test]
    fn slow_response_changes_nothing() {
        let round_trips = RoundTrips::new(ms(2));
        round_trips.add_upper_bound(ms(3000));
        assert_eq!(round_trips.mean(), ms(2));
    }
}
