//! How many watches a stream carries, as the hub and the stream both see it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many watches the hub has sent to a stream. The two share it, so that none is sent to a stream that ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Load(Arc<AtomicUsize>);

impl Load {
    const ENDED: usize = usize::MAX / 2;

    /// Takes a place if there is one.
    pub(crate) fn take(&self, limit: usize) -> bool {
        let taken = self.0.load(Ordering::Relaxed) < limit;
        if taken {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::ENDED
    }

    /// Gives a place back; whether it was the last one.
    pub(super) fn leave(&self) -> bool {
        !self.has_ended() && self.0.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(super) fn end(&self) {
        self.0.store(Self::ENDED, Ordering::Relaxed);
    }
}
