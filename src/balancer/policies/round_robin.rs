//! Sends requests to all ready members in turn.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{BalancePolicy, ReadyEndpoints};

/// Sends requests to all ready members in turn: their numbers of requests differ by at most one. The default policy.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl RoundRobin {
    /// Creates the policy. It starts with a random member, so that many clients do not all start with the same one.
    pub fn new() -> Self {
        Self {
            next: AtomicUsize::new(fastrand::usize(..1 << 16)),
        }
    }
}

impl BalancePolicy for RoundRobin {
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % candidates.len()
    }
}
