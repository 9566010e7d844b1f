//! Sends requests to all ready members in turn.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{BalancePolicy, ReadyEndpoints};

/// Sends requests to all ready members in turn: their numbers of requests differ by at most one. The default policy.
#[derive(Debug)]
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

impl Default for RoundRobin {
    fn default() -> Self {
        Self::new()
    }
}

impl BalancePolicy for RoundRobin {
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % candidates.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_starts_with_random_member() {
        let starts: Vec<usize> = (0..64)
            .map(|_| RoundRobin::default().next.into_inner())
            .collect();
        assert!(starts.iter().any(|start| *start != starts[0]), "{starts:?}");
    }
}
