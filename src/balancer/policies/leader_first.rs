//! Sends requests to the leader.

use super::{BalancePolicy, ReadyEndpoints, RoundRobin};

/// Sends all requests to the leader, which saves a network hop for writes and linearizable reads. Falls back to round
/// robin while no leader is known or ready.
#[derive(Debug, Default)]
pub struct LeaderFirst {
    fallback: RoundRobin,
}

impl LeaderFirst {
    /// Creates the policy.
    pub fn new() -> Self {
        Self {
            fallback: RoundRobin::new(),
        }
    }
}

impl BalancePolicy for LeaderFirst {
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
        candidates
            .iter()
            .position(|candidate| candidate.is_leader())
            .unwrap_or_else(|| self.fallback.pick(candidates))
    }

    fn follows_leader(&self) -> bool {
        true
    }
}
