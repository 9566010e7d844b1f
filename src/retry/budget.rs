//! The retry budget: a limit on the retries and hedges of the whole client.
//!
//! Why a budget in addition to the delays of each call? Delays limit one call; a thousand calls that fail together
//! still overload the cluster. Why not only gRPC's throttle? It stops retries until enough calls succeed, so after a
//! long outage no retry would detect that the cluster is back. This budget refills with time, and a call without budget
//! waits, at most until its deadline, instead of failing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Limits of the retry budget, over all calls of a client. Hedges take from the same budget, but leave half of the
/// burst to retries; a hedge without budget is omitted.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BudgetLimits {
    /// Retries per second in the long run; at least 1. Default: 250.
    pub per_second: u32,
    /// Retries at once after a time without retries; at least 1. Default: 500.
    pub burst: u32,
    /// Retries added per successful call, so that a busy client can retry more. Default: 0.1.
    pub per_success: f64,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            per_second: 250,
            burst: 500,
            per_success: 0.1,
        }
    }
}

/// Result of a request for one retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetGrant {
    /// One retry is granted after this delay.
    After(Duration),
    /// Too many retries are waiting: nothing was granted. Request again after this delay.
    RequestAgain(Duration),
}

/// Longest delay of a grant, and so the longest delay that the unused grants of ended calls cause.
const MAX_GRANT_DELAY: Duration = Duration::from_secs(1);

/// A token bucket, stored as one number: the time at which the bucket will be full again.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    origin: Instant,
    /// Cost of one retry, in nanoseconds of refill.
    cost: u64,
    /// Time by which `full_at` can be ahead of now without a delay: the refill time of the burst.
    allowance: u64,
    /// Nanoseconds of refill that one success adds.
    reward: u64,
    /// Nanoseconds after `origin`.
    full_at: AtomicU64,
}

impl RetryBudget {
    /// Creates a full bucket.
    pub(crate) fn new(limits: BudgetLimits, now: Instant) -> Self {
        let cost = 1_000_000_000 / u64::from(limits.per_second.max(1));
        let thousandths = Duration::try_from_secs_f64(limits.per_success.max(0.0))
            .map_or(0, |part| {
                u64::try_from(part.as_millis()).unwrap_or(u64::MAX)
            });
        Self {
            origin: now,
            cost,
            allowance: cost.saturating_mul(u64::from(limits.burst.max(1))),
            reward: cost.saturating_mul(thousandths) / 1000,
            full_at: AtomicU64::new(0),
        }
    }

    /// Requests one retry.
    pub(crate) fn take(&self, now: Instant) -> BudgetGrant {
        let now = self.nanos(now);
        let mut wait = 0;
        let taken = self
            .full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let next = full_at.max(now).saturating_add(self.cost);
                wait = next.saturating_sub(self.allowance).saturating_sub(now);
                (u128::from(wait) <= MAX_GRANT_DELAY.as_nanos()).then_some(next)
            });
        match taken {
            Ok(_) => BudgetGrant::After(Duration::from_nanos(wait)),
            Err(_) => BudgetGrant::RequestAgain(MAX_GRANT_DELAY),
        }
    }

    /// Takes one retry for a hedge, if that is possible without a delay. Half of the burst is reserved for retries: a
    /// hedge can be omitted, a retry cannot.
    pub(crate) fn take_for_hedge(&self, now: Instant) -> bool {
        let now = self.nanos(now);
        self.full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let next = full_at.max(now).saturating_add(self.cost);
                let limit = now.saturating_add(self.cost.max(self.allowance / 2));
                (next <= limit).then_some(next)
            })
            .is_ok()
    }

    /// Adds the reward of a successful call.
    pub(crate) fn succeeded(&self, now: Instant) {
        // Most calls succeed while the bucket is full; they must not write to a cache line that all callers share.
        let now = self.nanos(now);
        if self.full_at.load(Ordering::Relaxed) <= now {
            return;
        }
        let _ = self
            .full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                (full_at > now).then(|| full_at.saturating_sub(self.reward).max(now))
            });
    }

    fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// gRPC's `retryThrottling`: retries stop while at most half of the tokens remain. Only successes add tokens.
#[derive(Debug)]
pub(crate) struct Throttle {
    max: u32,
    per_success: u32,
    /// In thousandths, the precision that gRPC defines.
    tokens: AtomicU32,
}

impl Throttle {
    pub(crate) fn new(max_tokens: u32, per_success_thousandths: u32) -> Self {
        let max = max_tokens.saturating_mul(1000);
        Self {
            max,
            per_success: per_success_thousandths,
            tokens: AtomicU32::new(max),
        }
    }

    /// Counts a failure and returns whether a retry is allowed.
    pub(crate) fn failed(&self) -> bool {
        let take = |tokens: u32| tokens.saturating_sub(1000);
        let before = self.update(take);
        take(before) > self.max / 2
    }

    /// Returns whether retries are stopped.
    pub(crate) fn is_active(&self) -> bool {
        self.tokens.load(Ordering::Relaxed) <= self.max / 2
    }

    pub(crate) fn succeeded(&self) {
        self.update(|tokens| tokens.saturating_add(self.per_success).min(self.max));
    }

    fn update(&self, change: impl Fn(u32) -> u32) -> u32 {
        let step = |tokens| Some(change(tokens));
        self.tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step)
            .unwrap_or_else(|unchanged| unchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(per_second: u32, burst: u32, per_success: f64) -> BudgetLimits {
        BudgetLimits {
            per_second,
            burst,
            per_success,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn burst_is_immediate_then_rate_limited() {
        let now = Instant::now();
        let budget = RetryBudget::new(limits(10, 3, 0.0), now);
        let grants: Vec<_> = (0..5).map(|_| budget.take(now)).collect();
        let waits = [0, 0, 0, 100, 200].map(|wait| BudgetGrant::After(ms(wait)));
        assert_eq!(grants, waits);
    }

    #[test]
    fn grants_are_delayed_by_one_second_at_most() {
        let start = Instant::now();
        let budget = RetryBudget::new(limits(10, 1, 0.0), start);
        let granted = (0..1000)
            .filter(|_| matches!(budget.take(start), BudgetGrant::After(_)))
            .count();
        assert_eq!(granted, 11);
        assert_eq!(
            budget.take(start),
            BudgetGrant::RequestAgain(MAX_GRANT_DELAY)
        );
        assert_eq!(
            budget.take(start + MAX_GRANT_DELAY),
            BudgetGrant::After(ms(100))
        );
        assert_eq!(
            budget.take(start + Duration::from_secs(60)),
            BudgetGrant::After(ms(0))
        );
    }

    #[test]
    fn hedges_leave_half_of_the_burst_to_retries() {
        let now = Instant::now();
        let budget = RetryBudget::new(limits(10, 8, 0.0), now);
        let hedges = |now| (0..20).filter(|_| budget.take_for_hedge(now)).count();
        assert_eq!(hedges(now), 4);
        assert_eq!(budget.take(now), BudgetGrant::After(ms(0)));
        assert_eq!(hedges(now), 0);
        assert_eq!(hedges(now + ms(100)), 0);
        assert_eq!(hedges(now + ms(200)), 1);
        assert_eq!(hedges(now + Duration::from_secs(60)), 4);
        let smallest = RetryBudget::new(limits(1, 1, 0.0), now);
        assert!(smallest.take_for_hedge(now) && !smallest.take_for_hedge(now));
    }

    #[test]
    fn successes_add_retries_up_to_the_burst() {
        let now = Instant::now();
        let budget = RetryBudget::new(limits(10, 2, 0.5), now);
        (0..100).for_each(|_| budget.succeeded(now));
        assert_eq!(
            [budget.take(now), budget.take(now)],
            [BudgetGrant::After(ms(0)); 2]
        );
        assert_eq!(budget.take(now), BudgetGrant::After(ms(100)));
        (0..4).for_each(|_| budget.succeeded(now));
        assert_eq!(budget.take(now), BudgetGrant::After(ms(0)));
    }

    #[test]
    fn thousand_failing_calls_stay_within_the_rate() {
        let start = Instant::now();
        let limits = BudgetLimits::default();
        let budget = RetryBudget::new(limits, start);
        // Each call requests its next retry as early as possible.
        let mut due = vec![0_u64; 1000];
        let mut made = Vec::new();
        for tick in 0..5000 {
            for next in due.iter_mut().filter(|next| **next <= tick) {
                match budget.take(start + ms(tick)) {
                    BudgetGrant::After(wait) => {
                        *next = tick + 1 + u64::try_from(wait.as_millis()).unwrap();
                        made.push(*next);
                    }
                    BudgetGrant::RequestAgain(wait) => {
                        *next = tick + u64::try_from(wait.as_millis()).unwrap();
                    }
                }
            }
        }
        for second in 1..5 {
            let within = made.iter().filter(|at| **at / 1000 == second).count();
            assert!(within <= 252, "{within} retries in second {second}");
            assert!(
                within >= 240,
                "{within} retries in second {second}: fewer than the rate"
            );
        }
        assert!(made.len() <= 500 + 6 * 250 + 1);
    }

    #[test]
    fn throttle_stops_at_half_and_recovers() {
        let throttle = Throttle::new(10, 100);
        assert_eq!(
            (0..6)
                .map(|_| throttle.failed())
                .filter(|allowed| *allowed)
                .count(),
            4
        );
        assert!(throttle.is_active());
        (0..20).for_each(|_| throttle.succeeded());
        assert!(!throttle.is_active());
        assert!(!throttle.failed(), "5 tokens are not more than half of 10");
        (0..20).for_each(|_| throttle.succeeded());
        assert!(throttle.failed(), "6 tokens are more than half of 10");
    }

    proptest! {
        #[test]
        fn any_calls_stay_within_rate_and_burst(
            per_second in 1_u32..500,
            burst in 1_u32..50,
            steps in prop::collection::vec((0_u64..50, prop::bool::weighted(0.8)), 1..400),
        ) {
            let start = Instant::now();
            let budget = RetryBudget::new(limits(per_second, burst, 0.1), start);
            let (mut now, mut successes) = (start, 0_u32);
            let mut made = Vec::new();
            for (gap, retry) in steps {
                now += ms(gap);
                if retry {
                    if let BudgetGrant::After(wait) = budget.take(now) {
                        prop_assert!(wait <= MAX_GRANT_DELAY);
                        made.push(now + wait);
                    }
                } else {
                    successes += 1;
                    budget.succeeded(now);
                }
            }
            made.sort();
            for (i, from) in made.iter().enumerate() {
                for (n, to) in (0_u32..).zip(&made[i..]) {
                    let window = (*to - *from).as_secs_f64();
                    let bound = f64::from(burst)
                        + f64::from(per_second) * 1.001 * window
                        + 0.1 * f64::from(successes)
                        - 0.99;
                    prop_assert!(f64::from(n) <= bound, "{n} retries in {window} s, bound {bound}");
                }
            }
        }
    }
}
