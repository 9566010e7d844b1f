//! How much the whole client may retry.
//!
//! Why a budget besides the waits of each call? Waits bound one call; a thousand calls that fail together are still a
//! storm. And why not only gRPC's throttle? It stops retries until enough calls succeed, so after a long outage
//! nothing is left to find out that the cluster is back. Here tokens come back with time, and a call that finds none
//! is delayed rather than failed: its deadline is the real limit.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many retries the client allows itself, over all calls.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BudgetLimits {
    /// Retries a second in the long run; at least 1. Default: 250.
    pub per_second: u32,
    /// Retries that may come at once after a quiet time; at least 1. Default: 500.
    pub burst: u32,
    /// Retries earned by each call that succeeds, so that a busy client may retry more. Default: 0.1.
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

/// What the budget grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// A retry may be made after this wait; it is paid for.
    After(Duration),
    /// Too many are waiting already: ask again after this long, nothing was taken.
    AskAgain(Duration),
}

/// Grants are promised no further ahead than this. Once the cluster is back, promises to calls that are long gone hold
/// the others up for no longer.
const HORIZON: Duration = Duration::from_secs(1);

/// The client's token bucket, kept as one number: the time at which all grants so far are paid off.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    origin: Instant,
    /// What one retry costs, in nanoseconds of refill.
    cost: u64,
    /// How far ahead of now the debt may run without a wait.
    allowance: u64,
    /// What one success gives back.
    reward: u64,
    paid_off: AtomicU64,
}

impl RetryBudget {
    /// A full bucket. `now` is where its time begins.
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
            paid_off: AtomicU64::new(0),
        }
    }

    /// Asks for one retry.
    pub(crate) fn take(&self, now: Instant) -> Grant {
        let now = self.nanos(now);
        let mut wait = 0;
        let taken = self
            .paid_off
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid_off| {
                let next = paid_off.max(now).saturating_add(self.cost);
                wait = next.saturating_sub(self.allowance).saturating_sub(now);
                (u128::from(wait) <= HORIZON.as_nanos()).then_some(next)
            });
        match taken {
            Ok(_) => Grant::After(Duration::from_nanos(wait)),
            Err(_) => Grant::AskAgain(HORIZON),
        }
    }

    /// A call succeeded: part of a retry is earned.
    pub(crate) fn succeeded(&self, now: Instant) {
        // Most calls succeed while nothing is owed; they must not write to a line all callers share.
        let now = self.nanos(now);
        if self.paid_off.load(Ordering::Relaxed) <= now {
            return;
        }
        let _ = self
            .paid_off
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid_off| {
                (paid_off > now).then(|| paid_off.saturating_sub(self.reward).max(now))
            });
    }

    fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// gRPC's `retryThrottling`: retries stop while more than half of the tokens are gone, and only successes bring them
/// back.
#[derive(Debug)]
pub(crate) struct Throttle {
    max: u32,
    per_success: u32,
    /// In thousandths, the precision gRPC defines.
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

    /// Counts a failure and says whether a retry is allowed after it.
    pub(crate) fn failed(&self) -> bool {
        let take = |tokens: u32| tokens.saturating_sub(1000);
        let before = self.update(take);
        take(before) > self.max / 2
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
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let budget = RetryBudget::new(limits(10, 3, 0.0), now);
        let grants: Vec<_> = (0..5).map(|_| budget.take(now)).collect();
        let waits = [0, 0, 0, 100, 200].map(|wait| Grant::After(ms(wait)));
        assert_eq!(grants, waits);
    }

    #[test]
    fn promises_reach_no_further_than_a_second_and_time_brings_more() {
        let start = Instant::now();
        let budget = RetryBudget::new(limits(10, 1, 0.0), start);
        let granted = (0..1000)
            .filter(|_| matches!(budget.take(start), Grant::After(_)))
            .count();
        assert_eq!(granted, 11);
        assert_eq!(budget.take(start), Grant::AskAgain(HORIZON));
        assert_eq!(budget.take(start + HORIZON), Grant::After(ms(100)));
        assert_eq!(
            budget.take(start + Duration::from_secs(60)),
            Grant::After(ms(0))
        );
    }

    #[test]
    fn successes_earn_retries_but_never_more_than_a_burst() {
        let now = Instant::now();
        let budget = RetryBudget::new(limits(10, 2, 0.5), now);
        (0..100).for_each(|_| budget.succeeded(now));
        assert_eq!(
            [budget.take(now), budget.take(now)],
            [Grant::After(ms(0)); 2]
        );
        assert_eq!(budget.take(now), Grant::After(ms(100)));
        (0..4).for_each(|_| budget.succeeded(now));
        assert_eq!(budget.take(now), Grant::After(ms(0)));
    }

    #[test]
    fn a_thousand_calls_against_a_dead_cluster_make_no_storm() {
        let start = Instant::now();
        let limits = BudgetLimits::default();
        let budget = RetryBudget::new(limits, start);
        // Each call asks again as soon as its last grant or refusal allows.
        let mut due = vec![0_u64; 1000];
        let mut made = Vec::new();
        for tick in 0..5000 {
            for next in due.iter_mut().filter(|next| **next <= tick) {
                match budget.take(start + ms(tick)) {
                    Grant::After(wait) => {
                        *next = tick + 1 + u64::try_from(wait.as_millis()).unwrap();
                        made.push(*next);
                    }
                    Grant::AskAgain(wait) => {
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
                "{within} retries in second {second}: the budget starves"
            );
        }
        assert!(made.len() <= 500 + 6 * 250 + 1);
    }

    #[test]
    fn the_throttle_stops_at_half_and_recovers_with_successes() {
        let throttle = Throttle::new(10, 100);
        assert_eq!(
            (0..6)
                .map(|_| throttle.failed())
                .filter(|allowed| *allowed)
                .count(),
            4
        );
        (0..20).for_each(|_| throttle.succeeded());
        assert!(!throttle.failed(), "5 tokens are not more than half of 10");
        (0..20).for_each(|_| throttle.succeeded());
        assert!(throttle.failed(), "6 tokens are");
    }

    proptest! {
        #[test]
        fn no_pattern_of_calls_gets_more_than_rate_and_burst(
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
                    if let Grant::After(wait) = budget.take(now) {
                        prop_assert!(wait <= HORIZON);
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
