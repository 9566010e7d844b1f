//! Sends requests to one member until it fails.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{BalancePolicy, ConnectionMode, ReadyEndpoints};

/// Id that stands for no endpoint.
const NONE: u64 = u64::MAX;

/// Sends all requests to one member until it fails, then to another. Copies of late requests and the second leg of a
/// hedged watch go to other members, but later requests stay with the first one.
#[derive(Debug)]
pub struct Pinned {
    mode: ConnectionMode,
    /// Id of the pinned endpoint, or [`NONE`].
    endpoint: AtomicU64,
}

impl Pinned {
    /// Keeps a single TCP connection, for large fleets of clients. The client connects to all endpoints, keeps the
    /// first that is ready and closes the others gracefully. A request that names another member (`.at(endpoint)`)
    /// connects that member as well, until no request has named it for 30 s.
    pub fn cold() -> Self {
        Self::with(ConnectionMode::Single)
    }

    /// Keeps the other members connected, for a faster switch when the pinned one fails.
    pub fn warm() -> Self {
        Self::with(ConnectionMode::All)
    }

    fn with(mode: ConnectionMode) -> Self {
        Self {
            mode,
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
        // Random, so that the clients of a fleet do not all move to the same member.
        let index = fastrand::usize(..candidates.len());
        if candidates.is_complete()
            && let Some(chosen) = candidates.get(index)
        {
            self.endpoint.store(chosen.id().0, Ordering::Relaxed);
        }
        index
    }

    fn connection_mode(&self) -> ConnectionMode {
        self.mode
    }
}
