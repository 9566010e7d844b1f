//! Sends each request to the less busy of two members.

use super::{BalancePolicy, ReadyEndpoints};

/// Chooses two members at random and sends the request to the one with fewer requests in flight. Slow members
/// receive fewer requests, without any measurement of latency.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PowerOfTwo;

impl PowerOfTwo {
    /// Creates the policy.
    pub fn new() -> Self {
        Self
    }
}

impl BalancePolicy for PowerOfTwo {
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
        let count = candidates.len();
        if count < 2 {
            return 0;
        }
        let first = fastrand::usize(..count);
        // Never equal to `first`.
        let second = (first + fastrand::usize(1..count)) % count;
        let load = |index| {
            candidates
                .get(index)
                .map_or(usize::MAX, |candidate| candidate.in_flight())
        };
        if load(second) < load(first) {
            second
        } else {
            first
        }
    }
}
