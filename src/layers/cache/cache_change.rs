//! Changes of a cache.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix::Message;
use tokio::sync::watch;
use tokio_stream::{Stream, wrappers::WatchStream};

use super::{Cache, CacheEntry, CacheSnapshot, cache_handle::check_running, entry_tree::TreeDiff};
use crate::error::Error;

/// An event of a cache. The last one is [`Ended`](Self::Ended).
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum CacheEvent {
    /// Keys were created, changed or deleted.
    Updated(CacheUpdate),
    /// The cache ended with this error. No event follows.
    Ended(Error),
}

/// The sum of the changes between two snapshots of a cache, which are computed while they are read.
#[derive(Clone)]
pub struct CacheUpdate {
    before: CacheSnapshot,
    after: CacheSnapshot,
}

impl CacheUpdate {
    /// Returns the content before the changes.
    pub fn before(&self) -> &CacheSnapshot {
        &self.before
    }

    /// Returns the content after the changes.
    pub fn after(&self) -> &CacheSnapshot {
        &self.after
    }

    /// Returns the revision after the changes.
    pub fn revision(&self) -> i64 {
        self.after.revision
    }

    /// Returns the changes in the order of their keys: at most one per key.
    pub fn iter(&self) -> CacheDiff {
        self.before.changes_to(&self.after)
    }
}

impl fmt::Debug for CacheUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheUpdate")
            .field("before", &self.before)
            .field("after", &self.after)
            .finish()
    }
}

impl IntoIterator for &CacheUpdate {
    type Item = CacheChange;
    type IntoIter = CacheDiff;

    fn into_iter(self) -> CacheDiff {
        self.iter()
    }
}

impl CacheSnapshot {
    /// Returns the changes that lead from this snapshot to another one of the same cache, in the order of their keys.
    /// Takes about as long as there are changes, if the two are close to each other.
    pub fn changes_to(&self, after: &Self) -> CacheDiff {
        CacheDiff(TreeDiff::new(&self.tree, &after.tree))
    }
}

/// A change of one key, with the entry before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheChange {
    /// The key is new.
    Created(CacheEntry),
    /// The key was written, or deleted and created again, which its `create_revision` shows.
    Changed {
        /// The entry before.
        previous: CacheEntry,
        /// The entry now.
        current: CacheEntry,
    },
    /// The key with this entry was deleted.
    Deleted(CacheEntry),
}

impl CacheChange {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Created(entry) | Self::Deleted(entry) | Self::Changed { current: entry, .. } => {
                entry.key()
            }
        }
    }

    /// Returns the entry now; `None` if the key was deleted.
    pub fn current(&self) -> Option<&CacheEntry> {
        match self {
            Self::Created(entry) | Self::Changed { current: entry, .. } => Some(entry),
            Self::Deleted(_) => None,
        }
    }

    /// Returns the entry before; `None` if the key is new.
    pub fn previous(&self) -> Option<&CacheEntry> {
        match self {
            Self::Deleted(entry)
            | Self::Changed {
                previous: entry, ..
            } => Some(entry),
            Self::Created(_) => None,
        }
    }
}

/// Changes between two snapshots, in the order of their keys.
#[derive(Clone)]
#[must_use = "an iterator does nothing until it is read"]
pub struct CacheDiff(TreeDiff);

impl Iterator for CacheDiff {
    type Item = CacheChange;

    fn next(&mut self) -> Option<CacheChange> {
        loop {
            return Some(match self.0.next()? {
                (None, Some(entry)) => CacheChange::Created(entry),
                (Some(entry), None) => CacheChange::Deleted(entry),
                (Some(previous), Some(current)) => CacheChange::Changed { previous, current },
                (None, None) => continue,
            });
        }
    }
}

impl fmt::Debug for CacheDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheDiff")
    }
}

/// A stream of the changes of a cache. Keeps the cache running.
///
/// Each update has the sum of the changes since the last one, so nothing is buffered, and no change is lost, also
/// through compactions and restores. Two changes of one key that follow each other fast may be merged; a
/// [watch](crate::Client::watch) delivers every single revision. A slow reader keeps the snapshot of its last update.
#[must_use = "a stream does nothing until it is read"]
pub struct CacheChanges {
    cache: Cache,
    ticks: WatchStream<()>,
    last: CacheSnapshot,
    /// Whether an update without changes is returned: the first one of a delivery.
    first: bool,
    ended: bool,
}

impl CacheChanges {
    pub(super) fn new(cache: Cache, ticks: watch::Receiver<()>, last: CacheSnapshot) -> Self {
        Self {
            cache,
            ticks: WatchStream::new(ticks),
            last,
            first: false,
            ended: false,
        }
    }

    /// Returns the whole content as the first update, even if there are no keys.
    pub(super) fn with_first(mut self) -> Self {
        self.first = true;
        self
    }

    /// Returns the content after the last update; at first, that at the start of the stream.
    pub fn snapshot(&self) -> &CacheSnapshot {
        &self.last
    }

    /// Returns the next event, and `None` after [`CacheEvent::Ended`].
    pub async fn next(&mut self) -> Option<CacheEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<CacheEvent>> {
        while !self.ended {
            // The stream starts with a tick. `None` means that the task has ended.
            let tick = ready!(Pin::new(&mut self.ticks).poll_next(cx));
            let after = self.cache.snapshot();
            let is_first = std::mem::take(&mut self.first);
            // Two trees can differ by nodes and have the same entries.
            if is_first || self.last.changes_to(&after).next().is_some() {
                let before = std::mem::replace(&mut self.last, after.clone());
                if tick.is_none() {
                    self.ticks = WatchStream::new(self.cache.ticks());
                }
                let update = CacheUpdate { before, after };
                return Poll::Ready(Some(CacheEvent::Updated(update)));
            }
            self.last = after;
            if tick.is_none() {
                self.ended = true;
                let end = check_running(&self.cache.published()).err();
                let error = end.unwrap_or_else(Error::shut_down);
                return Poll::Ready(Some(CacheEvent::Ended(error)));
            }
        }
        Poll::Ready(None)
    }
}

impl Stream for CacheChanges {
    type Item = CacheEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<CacheEvent>> {
        self.poll(cx)
    }
}

impl fmt::Debug for CacheChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheChanges")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
