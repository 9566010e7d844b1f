//! The less busy of two.

use super::{BalancePolicy, ReadyEndpoints};

/// Looks at two members chosen at random and takes the one with fewer requests in flight: slow members get less
/// without anybody measuring them.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PowerOfTwo;

impl PowerOfTwo {
    /// The policy.
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
        // Drawn from the others, so that the two differ.
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
