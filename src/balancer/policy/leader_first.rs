//! The leader while it is ready.

use super::{BalancePolicy, ReadyEndpoints, RoundRobin};

/// Sends everything to the leader, which saves a hop for writes and linearizable reads; round robin while no
/// leader is known or ready.
#[derive(Debug, Default)]
pub struct LeaderFirst {
    otherwise: RoundRobin,
}

impl LeaderFirst {
    /// The policy.
    pub fn new() -> Self {
        Self {
            otherwise: RoundRobin::new(),
        }
    }
}

impl BalancePolicy for LeaderFirst {
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
        candidates
            .iter()
            .position(|candidate| candidate.is_leader())
            .unwrap_or_else(|| self.otherwise.pick(candidates))
    }

    fn follows_leader(&self) -> bool {
        true
    }
}
