//! The state that the task of a cache publishes, and that readers load without a lock.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::{CacheFreshness, CacheLag, CacheSnapshot};
use crate::{error::Error, watch::WatchHandle};

/// When the content of a cache was confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) enum ConfirmedAt {
    /// By etcd.
    Now(Instant),
    /// Before it was saved to a file.
    Saved(SystemTime),
}

impl ConfirmedAt {
    fn age(self) -> Duration {
        match self {
            Self::Now(time) => time.elapsed(),
            // A clock that was set back makes the age unknown.
            Self::Saved(time) => time.elapsed().unwrap_or(Duration::MAX),
        }
    }
}

/// A complete state of the cache: never a part of a revision.
#[derive(Debug)]
pub(super) struct PublishedState {
    pub(super) snapshot: CacheSnapshot,
    pub(super) confirmed: ConfirmedAt,
    pub(super) behind: Option<CacheLag>,
    /// The watch that changes come from, and the revision up to which the task had read it.
    pub(super) watch: Option<(Arc<WatchHandle>, i64)>,
    /// Number of times that all keys were read. Revisions of different histories of the cluster are not compared.
    pub(super) loads: u64,
}

impl PublishedState {
    /// Returns how fresh the state is.
    pub(super) fn freshness(&self) -> CacheFreshness {
        let mut freshness = CacheFreshness {
            revision: self.snapshot.revision,
            age: self.confirmed.age(),
            behind: self.behind.clone(),
        };
        if let Some((watch, read)) = &self.watch {
            let watched = watch.freshness();
            // In this order: the confirmation may require events that the task has read and not published yet.
            if watch.revision() <= *read {
                freshness.revision = freshness.revision.max(watched.revision);
                freshness.age = freshness.age.min(watched.age());
            }
            freshness.behind = freshness
                .behind
                .or_else(|| CacheLag::of_watch(&watched.status));
        }
        freshness
    }

    /// Returns the keys at the highest revision for which they are known to be complete, if it is not below this one.
    pub(super) fn snapshot_of(&self, least_revision: i64) -> Option<CacheSnapshot> {
        let revision = self.freshness().revision;
        // The snapshot is cloned at last: a change copies what a clone shares.
        (revision >= least_revision).then(|| CacheSnapshot {
            tree: self.snapshot.tree.clone(),
            revision,
            cluster: self.snapshot.cluster,
        })
    }
}

/// Shared by the task of a cache and its handles.
#[derive(Debug)]
pub(super) struct CacheState {
    published: ArcSwap<PublishedState>,
    /// Highest revision that a reader waits for.
    wanted: AtomicI64,
    wanted_changed: Notify,
    /// Notified after each published state, for the writer of the snapshot file.
    changed: Notify,
    closing: Notify,
    file_error: Mutex<Option<Error>>,
}

impl CacheState {
    pub(super) fn new(first: PublishedState, file_error: Option<Error>) -> Self {
        Self {
            published: ArcSwap::from_pointee(first),
            wanted: AtomicI64::new(0),
            wanted_changed: Notify::new(),
            changed: Notify::new(),
            closing: Notify::new(),
            file_error: Mutex::new(file_error),
        }
    }

    pub(super) fn load(&self) -> arc_swap::Guard<Arc<PublishedState>> {
        self.published.load()
    }

    pub(super) fn publish(&self, state: PublishedState) {
        self.published.store(Arc::new(state));
        self.changed.notify_one();
    }

    /// Waits for the next published state, or one that was published since the last call. Has one caller.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Makes the task request the progress of the watch until it covers a revision.
    pub(super) fn want(&self, revision: i64) {
        self.wanted.fetch_max(revision, Ordering::Relaxed);
        self.wanted_changed.notify_one();
    }

    pub(super) fn wanted(&self) -> i64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Forgets what readers wait for. Those that still wait want it again.
    pub(super) fn forget_wanted(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    pub(super) async fn wanted_changed(&self) {
        self.wanted_changed.notified().await;
    }

    /// Makes the task end.
    pub(super) fn close(&self) {
        self.closing.notify_one();
    }

    pub(super) async fn closing(&self) {
        self.closing.notified().await;
    }

    pub(super) fn file_error(&self) -> Option<Error> {
        let error = self.file_error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_file_error(&self, error: Option<Error>) {
        *self
            .file_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = error;
    }
}
