//! Limits the rate of probes, however many calls are slow. Time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket: each probe takes a token.
#[derive(Debug)]
pub(crate) struct ProbeBudget {
    capacity: f64,
    per_second: f64,
    tokens: f64,
    updated: Option<Instant>,
}

impl ProbeBudget {
    /// Probes of one member. The burst covers an election; over a minute there are at most two probes per second.
    pub(crate) const fn of_member() -> Self {
        Self::new(8.0, 1.6)
    }

    /// Probes of all members of a client. Only clients with more than ten endpoints reach this limit.
    pub(crate) const fn of_client() -> Self {
        Self::new(40.0, 20.0)
    }

    const fn new(capacity: f64, per_second: f64) -> Self {
        Self {
            capacity,
            per_second,
            tokens: capacity,
            updated: None,
        }
    }

    /// Returns how long the next probe has to wait.
    pub(crate) fn delay(&mut self, now: Instant) -> Duration {
        self.refill(now);
        let missing = (1.0 - self.tokens).max(0.0);
        Duration::from_secs_f64(missing / self.per_second)
    }

    /// Takes the token of a probe.
    pub(crate) fn take(&mut self, now: Instant) {
        self.refill(now);
        self.tokens -= 1.0;
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = self
            .updated
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.capacity);
        self.updated = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of probes within a time, if one is sent as soon as it is allowed.
    fn probes_within(mut budget: ProbeBudget, seconds: u64) -> u32 {
        let start = Instant::now();
        let mut now = start;
        let mut probes = 0;
        while now < start + Duration::from_secs(seconds) {
            let delay = budget.delay(now);
            if delay.is_zero() {
                budget.take(now);
                probes += 1;
            }
            now += delay.max(Duration::from_millis(1));
        }
        probes
    }

    #[test]
    fn member_gets_two_probes_per_second_at_most() {
        assert!(probes_within(ProbeBudget::of_member(), 20) <= 40);
        assert!(probes_within(ProbeBudget::of_member(), 60) <= 120);
    }

    #[test]
    fn burst_covers_an_election() {
        assert!(probes_within(ProbeBudget::of_member(), 2) >= 10);
    }

    #[test]
    fn unused_tokens_are_bounded() {
        let mut budget = ProbeBudget::of_member();
        let start = Instant::now();
        budget.take(start);
        let later = start + Duration::from_secs(3600);
        let mut burst = 0;
        while budget.delay(later).is_zero() {
            budget.take(later);
            burst += 1;
        }
        assert_eq!(burst, 8);
    }
}
