//! The number of watches on a stream, shared by the hub and the stream.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Number of watches that the hub has placed on a stream. The hub and the stream share it, so that the hub places no
/// watch on a stream that has ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchCount(Arc<AtomicUsize>);

impl WatchCount {
    const CLOSED: usize = usize::MAX / 2;

    /// Adds a watch, and returns `true`, if there are fewer than `limit`.
    pub(crate) fn try_add(&self, limit: usize) -> bool {
        let has_room = self.0.load(Ordering::Relaxed) < limit;
        if has_room {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Returns whether the stream has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::CLOSED
    }

    /// Removes a watch and returns whether it was the last one.
    pub(super) fn remove(&self) -> bool {
        !self.is_closed() && self.0.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Marks the stream as ended: it accepts no more watches.
    pub(super) fn close(&self) {
        self.0.store(Self::CLOSED, Ordering::Relaxed);
    }
}
