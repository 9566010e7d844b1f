//! The handle of a cache.

use std::{fmt, ops::RangeBounds, sync::Arc, time::Duration};

use actix::Recipient;
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use super::{
    CacheChanges, CacheEntry, CacheEvent, CacheFreshness, CacheLag, CacheRange, CacheSnapshot,
    TypedCache,
    cache_state::{CacheState, PublishedState},
    revision_reads::{RevisionRead, RevisionReads},
};
use crate::{
    client::{
        Client,
        subscription::{Subscription, subscribe_to_end},
    },
    error::{Error, ErrorKind, Outcome, Result},
    layers::codec::Codec,
};

/// Interval at which a waiting reader makes the task request progress again.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// A prefix mirrored in memory, see the [module](super). Clones share it. It ends when its last clone is dropped.
///
/// Reads are local and take no lock. A read of several keys is consistent if it uses one [`snapshot`](Self::snapshot).
#[derive(Clone)]
#[must_use = "dropping the cache ends it"]
pub struct Cache {
    /// Keeps the client running.
    client: Client,
    state: Arc<CacheState>,
    /// Changes with each published state. Keeps the task running.
    ticks: watch::Receiver<()>,
    reads: RevisionReads,
}

impl Cache {
    pub(super) fn new(
        client: Client,
        state: Arc<CacheState>,
        ticks: watch::Receiver<()>,
        reads: RevisionReads,
    ) -> Self {
        Self {
            client,
            state,
            ticks,
            reads,
        }
    }

    /// Returns the cache for background work, which does not keep the client running.
    pub(crate) fn for_background(mut self) -> Self {
        self.client = self.client.for_background();
        self
    }

    /// Returns the entry of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<CacheEntry> {
        self.state.load().snapshot.get(key)
    }

    /// Returns whether the key exists.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> bool {
        self.state.load().snapshot.contains_key(key)
    }

    /// Returns all keys at one revision. Cheap: nothing is copied.
    pub fn snapshot(&self) -> CacheSnapshot {
        self.state.load().snapshot.clone()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.state.load().snapshot.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the revision of the content.
    pub fn revision(&self) -> i64 {
        self.state.load().snapshot.revision
    }

    /// Returns all entries in the order of their keys, at one revision.
    pub fn iter(&self) -> CacheRange {
        self.state.load().snapshot.iter()
    }

    /// Returns the entries of a range of keys in their order, at one revision: `cache.range("a".."b")`.
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> CacheRange {
        self.state.load().snapshot.range(keys)
    }

    /// Returns the entries whose keys start with a prefix, in the order of their keys, at one revision. The prefix
    /// includes that of the cache.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> CacheRange {
        self.state.load().snapshot.prefix(prefix)
    }

    /// Returns how fresh the content is, and why it is behind if it is.
    pub fn freshness(&self) -> CacheFreshness {
        self.state.load().freshness()
    }

    /// Returns a view of the cache whose values are decoded by a codec.
    pub fn typed<T, C: Codec<T>>(&self) -> TypedCache<T, C> {
        TypedCache::new(self.clone())
    }

    /// Returns the entry of a key, linearizable: as recent as every write that was acknowledged before this call, by any
    /// client. Costs a read of the current revision, which concurrent callers share, and waits until the cache has that
    /// revision. Fails as [`consistent_snapshot`](Self::consistent_snapshot) does.
    pub async fn get_consistent(&self, key: impl AsRef<[u8]>) -> Result<Option<CacheEntry>> {
        Ok(self.consistent_snapshot().await?.get(key))
    }

    /// Returns all keys, linearizable: as recent as every write that was acknowledged before this call, by any client.
    ///
    /// Fails with the error of the read, and with [`ErrorKind::DeadlineExceeded`] if the cache does not have the current
    /// revision within the client's `request_timeout`. The content of a
    /// [snapshot file](super::CacheBuilder::snapshot_file) is never returned. etcd's gRPC proxy reports no progress, so behind one that lasts
    /// until the next change of a cached key.
    pub async fn consistent_snapshot(&self) -> Result<CacheSnapshot> {
        let limit = self.client.request_timeout();
        let deadline = Instant::now() + limit;
        let read = match timeout_at(deadline, self.reads.read()).await {
            Ok(read) => read?,
            Err(_) => return Err(self.not_in_time("its current revision", limit)),
        };
        let RevisionRead {
            revision,
            loads_before,
            cached_before,
        } = read;
        // The cluster was restored from a backup: the content of the cache is of the replaced history.
        let least_loads = if revision < cached_before {
            loads_before + 1
        } else {
            1
        };
        let covered = self.covered(revision, least_loads);
        match timeout_at(deadline, covered).await {
            Ok(snapshot) => snapshot,
            Err(_) => Err(self.not_in_time(&format!("revision {revision}"), limit)),
        }
    }

    /// Waits until the cache has every change up to a revision, for example that of a write of your own. Returns a
    /// snapshot that has them. The content of a [snapshot file](super::CacheBuilder::snapshot_file) does not suffice: it
    /// may be that of another cluster. Has no deadline. Fails if the cache ends.
    pub async fn wait_for_revision(&self, revision: i64) -> Result<CacheSnapshot> {
        self.covered(revision, 1).await
    }

    /// Waits until the cache has read all keys so many times, and has every change up to a revision.
    async fn covered(&self, revision: i64, least_loads: u64) -> Result<CacheSnapshot> {
        let mut ticks = self.ticks.clone();
        loop {
            ticks.mark_unchanged();
            {
                let state = self.state.load();
                if state.loads >= least_loads
                    && let Some(snapshot) = state.snapshot_of(revision)
                {
                    return Ok(snapshot);
                }
                check_running(&state)?;
            }
            self.state.want(revision);
            // Whether there is a new state or the time is over, the state is checked again.
            let _ = timeout(PROGRESS_INTERVAL, ticks.changed()).await;
        }
    }

    /// Waits until the content fulfils a condition. Returns the snapshot that does. Changes that follow each other fast
    /// may be checked together. Has no deadline. Fails if the cache ends.
    pub async fn wait_until(
        &self,
        mut condition: impl FnMut(&CacheSnapshot) -> bool,
    ) -> Result<CacheSnapshot> {
        let mut ticks = self.ticks.clone();
        loop {
            ticks.mark_unchanged();
            let snapshot = self.snapshot();
            if condition(&snapshot) {
                return Ok(snapshot);
            }
            check_running(&self.state.load())?;
            // An error means that the task has ended, which the next round reports.
            let _ = ticks.changed().await;
        }
    }

    /// Waits until etcd has confirmed the content since the start of the cache: at once, unless the cache was started
    /// from a [snapshot file](super::CacheBuilder::snapshot_file). Has no deadline. Fails if the cache ends.
    pub async fn wait_synced(&self) -> Result<CacheSnapshot> {
        let mut ticks = self.ticks.clone();
        loop {
            ticks.mark_unchanged();
            {
                let state = self.state.load();
                if state.loads > 0 {
                    return Ok(state.snapshot.clone());
                }
                check_running(&state)?;
            }
            let _ = ticks.changed().await;
        }
    }

    /// Returns a stream of the changes from now on.
    pub fn changes(&self) -> CacheChanges {
        let snapshot = self.snapshot();
        CacheChanges::new(self.clone(), self.ticks.clone(), snapshot)
    }

    /// Sends the content to an actor, and then each change. The first update lists all keys as created. The next one is
    /// sent when the actor has handled the last one; changes in between are merged. The delivery ends when the actor
    /// stops, the cache ends, or the subscription is dropped.
    pub fn deliver_to(&self, recipient: Recipient<CacheEvent>) -> Subscription {
        let cache = self.clone().for_background();
        let ticks = cache.ticks.clone();
        let changes = CacheChanges::new(cache, ticks, CacheSnapshot::default()).with_first();
        let if_shut_down = CacheEvent::Ended(Error::shut_down());
        subscribe_to_end(&self.client, changes, recipient, Some(if_shut_down))
    }

    /// Returns the last problem with the [snapshot file](super::CacheBuilder::snapshot_file): why it was ignored at the
    /// start, or why it could not be written. `None` if there is none, or since the file was written.
    pub fn file_error(&self) -> Option<Error> {
        self.state.file_error()
    }

    /// Ends the cache and all its clones, and waits until its snapshot file is written. Clones serve the last content.
    pub async fn close(self) {
        self.state.close();
        let mut ticks = self.ticks.clone();
        while ticks.changed().await.is_ok() {}
    }

    /// Returns whether etcd has confirmed the content since the start of the cache.
    pub(crate) fn is_synced(&self) -> bool {
        self.state.load().loads > 0
    }

    pub(super) fn ticks(&self) -> watch::Receiver<()> {
        self.ticks.clone()
    }

    pub(super) fn published(&self) -> arc_swap::Guard<Arc<PublishedState>> {
        self.state.load()
    }

    fn not_in_time(&self, missing: &str, limit: Duration) -> Error {
        let behind = self.freshness().behind;
        let reason = match behind {
            Some(lag) => format!("the cache did not get {missing} within {limit:?}: {lag}"),
            None => format!("the cache did not get {missing} within {limit:?}"),
        };
        Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason)
    }
}

/// Fails if the cache has ended.
pub(super) fn check_running(state: &PublishedState) -> Result<()> {
    match &state.behind {
        Some(CacheLag::Ended(error)) => Err(error.clone()),
        _ => Ok(()),
    }
}

impl IntoIterator for &Cache {
    type Item = CacheEntry;
    type IntoIter = CacheRange;

    fn into_iter(self) -> CacheRange {
        self.iter()
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load();
        f.debug_struct("Cache")
            .field("snapshot", &state.snapshot)
            .field("behind", &state.behind)
            .finish_non_exhaustive()
    }
}
