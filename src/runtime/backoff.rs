//! Growing delays between attempts, with jitter.
//!
//! [`Backoff`] is the only type for delays that grow with each failure. Randomness is an argument, so that decisions
//! are pure and tests can set it.

use std::time::Duration;

/// A schedule of delays: `first`, then `factor` times the previous delay after each failure, up to `max`. Jitter
/// lengthens or shortens each delay by up to the share `jitter`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Backoff {
    first: Duration,
    max: Duration,
    factor: f64,
    jitter: f64,
}

impl Backoff {
    /// Doubles from `first` up to `max`, without jitter.
    pub(crate) const fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            factor: 2.0,
            jitter: 0.0,
        }
    }

    /// Sets the growth per failure.
    pub(crate) const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the share of a delay that jitter adds or subtracts at most.
    pub(crate) const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets the longest delay before jitter.
    pub(crate) const fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// Returns the delay that follows `failures` earlier delays. `random` is between 0 and 1.
    pub(crate) fn delay(&self, failures: u32, random: f64) -> Duration {
        let exponent = i32::try_from(failures).unwrap_or(i32::MAX);
        let max = self.max.as_secs_f64();
        let delay = (self.first.as_secs_f64() * self.factor.powi(exponent)).min(max);
        let jitter = 1.0 + self.jitter * (2.0 * random.clamp(0.0, 1.0) - 1.0);
        Duration::from_secs_f64(delay * jitter)
    }

    /// Returns a timer that has counted no failures.
    pub(crate) const fn start(self) -> BackoffTimer {
        BackoffTimer {
            backoff: self,
            failures: 0,
        }
    }
}

/// A [`Backoff`] and the number of failures so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BackoffTimer {
    backoff: Backoff,
    failures: u32,
}

impl BackoffTimer {
    /// Counts one failure and returns the delay before the next attempt. `random` is between 0 and 1.
    pub(crate) fn next_delay(&mut self, random: f64) -> Duration {
        let delay = self.backoff.delay(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// Resets the count, so that the next delay is the first one.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of delays since the start or the last reset.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn delays_grow_up_to_the_maximum() {
        let mut timer = Backoff::new(ms(50), ms(300)).start();
        let delays: Vec<_> = (0..5).map(|_| timer.next_delay(0.5)).collect();
        assert_eq!(delays, [ms(50), ms(100), ms(200), ms(300), ms(300)]);
        assert_eq!(timer.failures(), 5);
        timer.reset();
        assert_eq!(timer.next_delay(0.5), ms(50));
    }

    #[test]
    fn jitter_lengthens_and_shortens_delays() {
        let backoff = Backoff::new(ms(100), ms(1000)).jitter(0.2);
        assert_eq!(backoff.delay(0, 0.0), ms(80));
        assert_eq!(backoff.delay(0, 0.5), ms(100));
        assert_eq!(backoff.delay(0, 1.0), ms(120));
    }

    #[test]
    fn delay_is_finite_after_any_number_of_failures() {
        let backoff = Backoff::new(ms(50), ms(3000)).factor(1.6);
        assert_eq!(backoff.delay(u32::MAX, 0.5), ms(3000));
    }
}
