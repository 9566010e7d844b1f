//! The task that keeps a cache current, on the client's thread.
//!
//! ```text
//! load all keys ──> watch from the next revision ──> publish each batch of revisions
//!      ^                         │ compacted, restored from a backup, another cluster, too large
//!      └─────────────────────────┘
//! ```
//!
//! The task has a tree of its own and publishes clones of it. A load or a batch that fails half-way is dropped, so
//! readers only ever see complete revisions.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use tokio::{
    sync::{oneshot, watch},
    time::{sleep, timeout_at},
};
use tokio_stream::Stream;

use super::{
    CacheEntry, CacheLag, CacheSnapshot,
    cache_state::{CacheState, ConfirmedAt, PublishedState},
    cached_range::CachedRange,
    entry_tree::EntryTree,
    range_load::{RangeLoad, check_memory},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    retry::availability::is_temporary,
    runtime::backoff::{Backoff, BackoffTimer},
    watch::{RevisionEvents, Watch, WatchEnd, WatchEvent, WatchHandle},
};

/// Delays between attempts to read all keys.
const LOAD_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).jitter(1.0 / 3.0);
/// A cache that was interrupted after this time reads its keys again at once.
const STABLE: Duration = Duration::from_secs(1);
/// Delays between attempts to read keys that did not fit. Each one reads as many bytes as fit.
const TOO_LARGE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).jitter(1.0 / 3.0);
/// Events that are applied before they are published. A batch ends earlier if no more events have arrived.
const MAX_BATCH: usize = 2048;
/// Key-values of a read after which other tasks of the thread may run.
const LOAD_STEP: usize = 1024;

/// Keeps a cache current until it is dropped.
pub(super) struct CacheTask {
    /// For background work: it does not keep the client running.
    client: Client,
    range: CachedRange,
    max_bytes: usize,
    state: Arc<CacheState>,
    /// Notifies the handles of each published state. Closed when the task has ended.
    ticks: watch::Sender<()>,
    /// Receives the result of the first load.
    first_load: Option<oneshot::Sender<Result<()>>>,
    /// Whether a failed first load is repeated: its caller waits, or the cache has content already.
    retry_first_load: bool,
    started: Instant,
    tree: EntryTree,
    revision: i64,
    /// Cluster that the keys were read from; 0 if it is unknown.
    cluster: u64,
    loads: u64,
    buffer: Vec<u8>,
    too_large: BackoffTimer,
}

/// Why the task stopped following its watch.
enum Interruption {
    /// All keys have to be read again.
    LoadAgain,
    Failed(Error),
    Ended(Error),
}

type ProgressRequest = Pin<Box<dyn Future<Output = Result<i64>> + Send>>;

impl CacheTask {
    pub(super) fn new(
        client: Client,
        range: CachedRange,
        max_bytes: usize,
        state: Arc<CacheState>,
        ticks: watch::Sender<()>,
    ) -> Self {
        let snapshot = state.load().snapshot.clone();
        Self {
            client,
            range,
            max_bytes,
            ticks,
            first_load: None,
            retry_first_load: false,
            started: Instant::now(),
            tree: snapshot.tree,
            revision: snapshot.revision,
            cluster: snapshot.cluster,
            loads: 0,
            buffer: Vec::new(),
            too_large: TOO_LARGE_BACKOFF.start(),
            state,
        }
    }

    /// Reports the result of the first load. With `retry`, it is repeated after temporary errors.
    pub(super) fn report_first_load(&mut self, result: oneshot::Sender<Result<()>>, retry: bool) {
        self.first_load = Some(result);
        self.retry_first_load = retry;
    }

    /// Runs until the client is shut down, or the first load has failed while its caller waits.
    pub(super) async fn run(&mut self) {
        let mut backoff = LOAD_BACKOFF.start();
        loop {
            let (loads, began) = (self.loads, Instant::now());
            let interruption = self.load_and_follow().await;
            if self.loads > loads && began.elapsed() > STABLE {
                backoff.reset();
            }
            match interruption {
                Interruption::LoadAgain => {
                    // The first repetition is not delayed.
                    let delay = backoff.next_delay(fastrand::f64());
                    if backoff.failures() > 1 && !self.sleep(delay).await {
                        return self.publish_lag(CacheLag::Ended(Error::shut_down()));
                    }
                }
                Interruption::Ended(error) => {
                    self.report_first(Err(error.clone()));
                    return self.publish_lag(CacheLag::Ended(error));
                }
                Interruption::Failed(error) => {
                    tracing::warn!(%error, key = ?self.range.key(), "cache could not read its keys");
                    let retries = self.retry_first_load && is_temporary(&error);
                    if !retries && self.report_first(Err(error.clone())) {
                        return;
                    }
                    let delay = if error.kind() == ErrorKind::CacheTooLarge {
                        self.too_large.next_delay(fastrand::f64())
                    } else {
                        backoff.next_delay(fastrand::f64())
                    };
                    self.report_failure(error);
                    if !self.sleep(delay).await {
                        return self.publish_lag(CacheLag::Ended(Error::shut_down()));
                    }
                }
            }
        }
    }

    /// Returns `false` if the client begins to shut down meanwhile.
    async fn sleep(&self, delay: Duration) -> bool {
        let stop = self.client.holders().stop_signal();
        tokio::select! {
            () = stop.wait() => false,
            () = sleep(delay) => true,
        }
    }

    /// Returns whether a caller was waiting for the first load. After the start timeout, none waits for it.
    fn report_first(&mut self, result: Result<()>) -> bool {
        let first_load = self.first_load.take();
        first_load.is_some_and(|first_load| first_load.send(result).is_ok())
    }

    fn report_failure(&mut self, error: Error) {
        let since = match &self.state.load().behind {
            Some(
                CacheLag::Failed { since, .. }
                | CacheLag::TooLarge { since, .. }
                | CacheLag::Loading { since },
            ) => *since,
            // The age of the file is more important.
            Some(CacheLag::FromFile { .. }) => return,
            _ => Instant::now(),
        };
        self.publish_lag(if error.kind() == ErrorKind::CacheTooLarge {
            CacheLag::TooLarge { since, error }
        } else {
            CacheLag::Failed { since, error }
        });
    }

    /// Returns whether the first load has had the time of a request, and its caller does not wait without a deadline.
    fn first_load_is_late(&self) -> bool {
        self.first_load.is_some()
            && !self.retry_first_load
            && self.started.elapsed() > self.client.request_timeout()
    }

    async fn load_and_follow(&mut self) -> Interruption {
        let began = Instant::now();
        let keeps_reason = matches!(
            self.state.load().behind,
            Some(CacheLag::Failed { .. } | CacheLag::TooLarge { .. } | CacheLag::FromFile { .. })
        );
        if !keeps_reason {
            self.publish_lag(CacheLag::Loading { since: began });
        }
        if let Err(error) = self.load().await {
            return match error.kind() {
                // The revision of the first page was compacted before the last page was read.
                ErrorKind::Compacted if !self.first_load_is_late() => Interruption::LoadAgain,
                ErrorKind::Shutdown => Interruption::Ended(error),
                _ => Interruption::Failed(error),
            };
        }
        self.loads += 1;
        tracing::debug!(
            key = ?self.range.key(),
            revision = self.revision,
            keys = self.tree.len(),
            "cache has read all keys"
        );
        self.publish(PublishedState {
            snapshot: self.snapshot(),
            confirmed: ConfirmedAt::Now(began),
            behind: Some(CacheLag::Reconnecting { since: began }),
            watch: None,
            loads: self.loads,
        });
        // Before the watch starts, which has no deadline.
        self.report_first(Ok(()));
        let watch = self.range.watch(&self.client).after_read(self.revision);
        match watch.progress_notify().wait().await {
            Ok(watch) => self.follow(watch).await,
            Err(error) => match error.kind() {
                ErrorKind::Compacted
                | ErrorKind::RevisionRegressed
                | ErrorKind::ClusterChanged
                | ErrorKind::WatchCanceled => Interruption::LoadAgain,
                ErrorKind::Shutdown => Interruption::Ended(error),
                _ => Interruption::Failed(error),
            },
        }
    }

    async fn load(&mut self) -> Result<()> {
        let read = self.range.read(&self.client);
        let mut load = RangeLoad::new(&self.tree, self.max_bytes);
        let revision = if self.range.is_prefix() {
            let mut kvs = read.stream();
            let mut count = 0;
            while let Some(kv) = kvs.next().await {
                load.add(&kv?)?;
                count += 1;
                if count % LOAD_STEP == 0 {
                    tokio::task::yield_now().await;
                }
            }
            kvs.revision()
        } else {
            let found = read.await?;
            for kv in &found.kvs {
                load.add(kv)?;
            }
            Some(found.header.revision)
        };
        // The watch starts after this revision.
        let revision = revision.filter(|revision| *revision > 0).ok_or_else(|| {
            let reason = "the response has no revision";
            Error::new(ErrorKind::Protocol, Outcome::NotSent, reason)
        })?;
        self.tree = load.finish();
        self.revision = revision;
        self.cluster = self.client.cluster_id().unwrap_or(0);
        // Revisions of a history that was replaced by a backup may never come.
        self.state.forget_wanted();
        Ok(())
    }

    /// Applies the changes of a watch until it ends.
    async fn follow(&mut self, mut watch: Watch) -> Interruption {
        let handle = Arc::new(watch.handle());
        self.publish_followed(&watch, &handle, None);
        let mut behind = None;
        let mut progress: Option<ProgressRequest> = None;
        // Progress up to this revision follows in the watch.
        let mut requested = 0;
        loop {
            let first = tokio::select! {
                item = watch.next() => item,
                result = completed(&mut progress) => {
                    progress = None;
                    match result {
                        Ok(revision) => requested = revision,
                        Err(error) => {
                            tracing::debug!(%error, "cache received no progress");
                            self.state.forget_wanted();
                            if behind.is_some() {
                                self.state.want(self.revision + 1);
                            }
                        }
                    }
                    continue;
                }
                () = self.state.wanted_changed(), if progress.is_none() => {
                    if self.state.wanted() > requested.max(watch.revision()) {
                        progress = Some(Box::pin(watch.request_progress()));
                    }
                    continue;
                }
            };
            let mut item = first;
            let mut events = 0;
            let interruption = loop {
                match self.apply(item, &watch, &mut behind) {
                    Ok(applied) => events += applied,
                    Err(interruption) => break Some(interruption),
                }
                if events >= MAX_BATCH {
                    break None;
                }
                item = match next_now(&mut watch).await {
                    Some(item) => item,
                    None => break None,
                };
            };
            match interruption {
                None => {
                    self.publish_followed(&watch, &handle, behind.clone());
                    if watch.revision() < requested {
                        // The progress did not confirm that revision: a reader may request it again.
                        requested = 0;
                    }
                    // A busy watch must not keep other tasks of the thread from running.
                    tokio::task::yield_now().await;
                }
                Some(Interruption::Failed(error)) if error.kind() == ErrorKind::CacheTooLarge => {
                    return self.wait_until_smaller(watch, error).await;
                }
                Some(interruption) => {
                    // The revisions before the end are complete.
                    self.publish_followed(&watch, &handle, behind);
                    return interruption;
                }
            }
        }
    }

    /// Applies the next item of the watch. Returns the number of events.
    fn apply(
        &mut self,
        item: Option<WatchEvent>,
        watch: &Watch,
        behind: &mut Option<CacheLag>,
    ) -> Result<usize, Interruption> {
        match item {
            Some(WatchEvent::Events(events)) => {
                *behind = None;
                self.apply_revision(&events).map_err(Interruption::Failed)?;
                return Ok(events.len());
            }
            Some(WatchEvent::Progress(_)) => {
                // Progress that may have overtaken events does not move the position of the watch.
                if watch.revision() >= self.revision {
                    self.revision = watch.revision();
                    *behind = None;
                }
            }
            Some(WatchEvent::RevisionRegressed { .. }) => {
                behind.get_or_insert(CacheLag::MemberBehind {
                    since: Instant::now(),
                });
                // The progress shows that the member has caught up.
                self.state.want(self.revision + 1);
            }
            Some(WatchEvent::Ended(end)) => return Err(interruption_of(&end)),
            None => return Err(Interruption::LoadAgain),
            Some(_) => {}
        }
        Ok(0)
    }

    /// Applies all events of a revision.
    fn apply_revision(&mut self, events: &RevisionEvents) -> Result<()> {
        for event in events {
            let Some(kv) = &event.kv else { continue };
            if event.is_put() {
                self.tree.insert(CacheEntry::new(kv, &mut self.buffer));
            } else {
                self.tree.remove(&kv.key);
            }
        }
        self.revision = events.revision();
        check_memory(self.tree.memory(), self.max_bytes)
    }

    /// Drops the changes that did not fit. Waits until a later change may have made room.
    async fn wait_until_smaller(&mut self, mut watch: Watch, error: Error) -> Interruption {
        tracing::warn!(%error, key = ?self.range.key(), "cache keeps its last state");
        let last = self.state.load().snapshot.clone();
        self.tree = last.tree;
        self.revision = last.revision;
        self.cluster = last.cluster;
        self.report_failure(error);
        let earliest = tokio::time::Instant::now() + self.too_large.next_delay(fastrand::f64());
        let mut may_fit = false;
        loop {
            let item = if may_fit {
                match timeout_at(earliest, watch.next()).await {
                    Ok(item) => item,
                    Err(_) => return Interruption::LoadAgain,
                }
            } else {
                watch.next().await
            };
            match item {
                Some(WatchEvent::Events(events)) => {
                    may_fit |= events.iter().any(|event| !event.is_create());
                }
                Some(WatchEvent::Ended(end)) => return interruption_of(&end),
                None => return Interruption::LoadAgain,
                Some(_) => {}
            }
        }
    }

    fn snapshot(&self) -> CacheSnapshot {
        CacheSnapshot {
            tree: self.tree.clone(),
            revision: self.revision,
            cluster: self.cluster,
        }
    }

    fn publish_followed(
        &mut self,
        watch: &Watch,
        handle: &Arc<WatchHandle>,
        behind: Option<CacheLag>,
    ) {
        // All events that were read have been applied, so the confirmation of the watch holds for the state.
        let confirmed = watch.freshness().as_of;
        if self.tree.memory() < self.max_bytes {
            self.too_large.reset();
        }
        self.publish(PublishedState {
            snapshot: self.snapshot(),
            confirmed: ConfirmedAt::Now(confirmed),
            behind,
            watch: Some((handle.clone(), watch.revision())),
            loads: self.loads,
        });
    }

    /// Publishes why the cache does not receive changes. Its content stays.
    fn publish_lag(&self, behind: CacheLag) {
        let last = self.state.load();
        self.publish(PublishedState {
            snapshot: last.snapshot.clone(),
            confirmed: last.confirmed,
            behind: Some(behind),
            watch: None,
            loads: last.loads,
        });
    }

    fn publish(&self, state: PublishedState) {
        self.state.publish(state);
        self.ticks.send_replace(());
    }
}

impl Drop for CacheTask {
    /// Publishes the end, also if the task was dropped together with its thread.
    fn drop(&mut self) {
        if !matches!(self.state.load().behind, Some(CacheLag::Ended(_))) {
            self.publish_lag(CacheLag::Ended(Error::shut_down()));
        }
    }
}

fn interruption_of(end: &WatchEnd) -> Interruption {
    match end {
        WatchEnd::Shutdown => Interruption::Ended(Error::shut_down()),
        WatchEnd::PermissionDenied(error) | WatchEnd::Refused(error) => {
            Interruption::Failed(error.clone())
        }
        _ => {
            tracing::info!(reason = %end, "cache reads all keys again");
            Interruption::LoadAgain
        }
    }
}

async fn completed(progress: &mut Option<ProgressRequest>) -> Result<i64> {
    match progress {
        Some(progress) => progress.await,
        None => pending().await,
    }
}

/// Returns the next item of a watch if it has arrived already.
async fn next_now(watch: &mut Watch) -> Option<Option<WatchEvent>> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *watch).poll_next(cx) {
            Poll::Ready(item) => Some(item),
            Poll::Pending => None,
        })
    })
    .await
}
