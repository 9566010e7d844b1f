//! One member until it fails.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{BalancePolicy, ConnectionMode, ReadyEndpoints};

const NONE: u64 = u64::MAX;

/// Sends everything to one member until it fails, then to another.
#[derive(Debug)]
pub struct Pinned {
    connects: ConnectionMode,
    endpoint: AtomicU64,
}

impl Pinned {
    /// One TCP connection only, for big fleets: all endpoints are dialled at first, the first one up is kept, the
    /// others are closed gracefully. A request that names another member (`.at(endpoint)`) connects that one, too, until
    /// none has named it for half a minute.
    pub fn cold() -> Self {
        Self::with(ConnectionMode::Single)
    }

    /// The other members stay connected, for a faster switch.
    pub fn warm() -> Self {
        Self::with(ConnectionMode::All)
    }

    fn with(connects: ConnectionMode) -> Self {
        Self {
            connects,
            endpoint: AtomicU64::new(NONE),
        }
    }
}

impl BalancePolicy for Pinned {
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize {
        let pinned = self.endpoint.load(Ordering::Relaxed);
        if let Some(index) = candidates
            .iter()
            .position(|candidate| candidate.id().0 == pinned)
        {
            return index;
        }
        // Chosen at random, so that the clients of a fleet do not all move to the same member.
        let index = fastrand::usize(..candidates.len());
        if let Some(chosen) = candidates.get(index) {
            self.endpoint.store(chosen.id().0, Ordering::Relaxed);
        }
        index
    }

    fn connects(&self) -> ConnectionMode {
        self.connects
    }
}
