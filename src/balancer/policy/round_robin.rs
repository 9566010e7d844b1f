//! Every ready member in turn.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{BalancePolicy, ReadyEndpoints};

/// Takes every ready member in turn: n requests over k members differ by at most one a member. The default.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: AtomicUsize,
}

impl RoundRobin {
    /// Starts with a member chosen at random, so that many clients do not all begin with the same one.
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
