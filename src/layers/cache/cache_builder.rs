//! The options of a cache, and its start.

use std::{
    future::{IntoFuture, pending},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::{
    Cache, CacheEvent, CacheLag, CacheSnapshot,
    cache_file::{FileCheck, SavedState, read_file},
    cache_state::{CacheState, ConfirmedAt, PublishedState},
    cache_task::CacheTask,
    cached_range::CachedRange,
    file_writer::{FileOptions, FileWriter},
    revision_reads::RevisionReads,
};
use crate::{
    client::{Client, subscription::Subscription},
    error::{Error, ErrorKind, Outcome, Result},
    request::{EtcdRequest, IntoBytes, ResponseFuture},
    runtime::delivery::UnfinishedDelivery,
};

/// Default of [`CacheBuilder::max_bytes`].
const MAX_BYTES: usize = 1 << 30;
/// Default of [`CacheBuilder::snapshot_interval`].
pub(crate) const FILE_INTERVAL: Duration = Duration::from_secs(30);

/// A request for a [`Cache`]. Awaiting it reads all keys and returns the cache;
/// [`deliver_to`](CacheBuilder::deliver_to) sends the content and its changes to an actor. Without a client
/// (`CacheBuilder<()>`), it is a message to the actor [`Etcd`](crate::Etcd).
///
/// Awaiting it fails with [`ErrorKind::CacheTooLarge`] if the keys do not fit into
/// [`max_bytes`](CacheBuilder::max_bytes), and with the error of the read if the keys cannot be read within the client's
/// `request_timeout` per page, unless it [waits](CacheBuilder::wait) or has a
/// [file](CacheBuilder::snapshot_file). Later failures do not end the cache.
#[derive(Debug, Clone)]
#[must_use = "a cache starts when this is awaited"]
pub struct CacheBuilder<C = ()> {
    prefix: Bytes,
    options: CacheOptions,
    client: C,
}

#[derive(Debug, Clone)]
struct CacheOptions {
    max_bytes: usize,
    wait: bool,
    file: Option<FileOptions>,
    start_timeout: Option<Duration>,
}

/// Creates a request for a cache of all keys with a prefix, without a client. An empty prefix means all keys.
pub fn cache(prefix: impl IntoBytes) -> CacheBuilder {
    CacheBuilder {
        prefix: prefix.into_bytes(),
        options: CacheOptions {
            max_bytes: MAX_BYTES,
            wait: false,
            file: None,
            start_timeout: None,
        },
        client: (),
    }
}

impl Client {
    /// Mirrors all keys with a prefix in memory, see [`layers::cache`](crate::layers::cache). An empty prefix means all
    /// keys.
    pub fn cache(&self, prefix: impl IntoBytes) -> CacheBuilder<Self> {
        cache(prefix).on(self)
    }
}

impl<C> CacheBuilder<C> {
    /// Bound on the memory of the content: keys and values, and about 60 bytes per key. A cache whose keys grow beyond
    /// it keeps its last state, and [`freshness`](Cache::freshness) returns [`CacheLag::TooLarge`].
    /// After a compaction, the keys are read again while the old state is served; only keys that have changed exist
    /// twice meanwhile. Default: 1 GiB.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.options.max_bytes = bytes;
        self
    }

    /// Waits without a deadline until the keys are read: temporary errors, such as an unreachable cluster, are retried.
    /// Other errors, such as a denied permission, fail at once. Fails when the client is shut down. Dropping the future
    /// stops waiting. Default: fails after the client's `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.options.wait = true;
        self
    }

    /// Saves the content to a file that only its owner can read, and starts from it if etcd cannot be reached. The content
    /// is then [marked as stale](CacheLag::FromFile) until the first read; [`Cache::wait_synced`] waits for that.
    /// The file is written some time after a change, when the cache ends, and when the client is shut down, and it
    /// always is complete. A file that is broken, from another cluster or of another prefix is ignored, see
    /// [`Cache::file_error`]. Use one file per cache. Default: no file.
    pub fn snapshot_file(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        match &mut self.options.file {
            Some(file) => file.path = path,
            None => self.options.file = Some(FileOptions::new(path)),
        }
        self
    }

    /// Time after a change at which the [file](Self::snapshot_file) is written, together with all later changes.
    /// Default: 30 s.
    pub fn snapshot_interval(mut self, interval: Duration) -> Self {
        self.options.file_mut().interval = interval;
        self
    }

    /// Ignores a [file](Self::snapshot_file) that is older than this, or whose time is in the future. Default: no limit.
    pub fn snapshot_max_age(mut self, age: Duration) -> Self {
        self.options.file_mut().max_age = Some(age);
        self
    }

    /// How long the start waits for etcd before it uses the [file](Self::snapshot_file). Default: the client's
    /// `request_timeout`.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.options.start_timeout = Some(timeout);
        self
    }
}

impl CacheOptions {
    fn file_mut(&mut self) -> &mut FileOptions {
        self.file
            .get_or_insert_with(|| FileOptions::new(PathBuf::new()))
    }
}

impl CacheBuilder {
    /// Binds the request to a client.
    pub fn on(self, client: &Client) -> CacheBuilder<Client> {
        CacheBuilder {
            prefix: self.prefix,
            options: self.options,
            client: client.clone(),
        }
    }

    /// Returns a message to the actor [`Etcd`](crate::Etcd) that starts sending [`CacheEvent`]s to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<CacheEvent>) -> SubscribeCache {
        SubscribeCache {
            cache: self,
            recipient,
        }
    }
}

impl CacheBuilder<Client> {
    /// Starts the cache and sends its content and its changes to an actor, see [`Cache::deliver_to`]. Fails as awaiting
    /// the request does.
    pub async fn deliver_to(self, recipient: Recipient<CacheEvent>) -> Result<Subscription> {
        let cache = self.await?;
        Ok(cache.deliver_to(recipient))
    }
}

impl IntoFuture for CacheBuilder<Client> {
    type Output = Result<Cache>;
    type IntoFuture = ResponseFuture<Cache>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let range = CachedRange::Prefix(self.prefix);
            let CacheOptions {
                max_bytes,
                wait,
                file,
                start_timeout,
            } = self.options;
            let mut start = CacheStart::new(self.client, range, max_bytes);
            start.wait = wait;
            if let Some(file) = file {
                start.use_file(&file, start_timeout).await?;
                start.writer = Some(file);
            }
            start.open().await
        })
    }
}

impl actix::Message for CacheBuilder {
    type Result = Result<Cache>;
}

impl EtcdRequest<Client> for CacheBuilder {
    type Response = Cache;

    fn name(&self) -> &'static str {
        "Cache"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Cache> {
        self.on(client).into_future()
    }
}

/// A message to the actor [`Etcd`](crate::Etcd) that sends the content of a prefix, and each change of it, to another
/// actor: `etcd.send(cache("config/").deliver_to(recipient))`. The response is a [`Subscription`].
///
/// Sent with `do_send`, the delivery continues until the actor stops or the client is shut down.
#[derive(Clone, Message)]
#[rtype(result = "Result<Subscription>")]
pub struct SubscribeCache {
    cache: CacheBuilder,
    recipient: Recipient<CacheEvent>,
}

impl EtcdRequest<Client> for SubscribeCache {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeCache"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        Box::pin(self.cache.on(client).deliver_to(self.recipient))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}

impl FileOptions {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            interval: FILE_INTERVAL,
            max_age: None,
        }
    }
}

/// A cache of a prefix or a key that is about to start.
pub(crate) struct CacheStart {
    client: Client,
    range: CachedRange,
    max_bytes: usize,
    /// Whether a first load without a file has no deadline.
    pub(crate) wait: bool,
    saved: Option<SavedState>,
    file_error: Option<Error>,
    start_timeout: Duration,
    /// The file that the cache writes.
    pub(crate) writer: Option<FileOptions>,
}

impl CacheStart {
    pub(crate) fn new(client: Client, range: CachedRange, max_bytes: usize) -> Self {
        Self {
            start_timeout: client.request_timeout(),
            client,
            range,
            max_bytes,
            wait: false,
            saved: None,
            file_error: None,
            writer: None,
        }
    }

    /// Reads the file to start from. A file that cannot be used is reported by the cache. Fails if it has no path.
    pub(crate) async fn use_file(
        &mut self,
        file: &FileOptions,
        start_timeout: Option<Duration>,
    ) -> Result<()> {
        if file.path.as_os_str().is_empty() {
            return Err(Error::invalid(
                "the snapshot file has no path; set it with `snapshot_file`",
            ));
        }
        self.start_timeout = start_timeout.unwrap_or(self.start_timeout);
        let check = FileCheck {
            range: self.range.clone(),
            sent_range: self.range.sent_by(&self.client),
            cluster: self.client.cluster_id(),
            max_age: file.max_age,
            max_bytes: self.max_bytes,
        };
        let path = file.path.clone();
        let read = tokio::task::spawn_blocking(move || read_file(&path, &check)).await;
        let read = read.unwrap_or_else(|error| {
            let reason = "the snapshot file could not be read";
            Err(Error::new(ErrorKind::Internal, Outcome::NotSent, reason).with_source(error))
        });
        match read {
            Ok(saved) => self.saved = saved,
            Err(error) => {
                tracing::warn!(%error, "snapshot file was ignored");
                self.file_error = Some(error);
            }
        }
        Ok(())
    }

    /// Returns the content of the file.
    pub(crate) fn saved(&self) -> Option<&CacheSnapshot> {
        self.saved.as_ref().map(|saved| &saved.snapshot)
    }

    /// Starts the cache, and waits for the first load. With a file, waits for the start timeout at most.
    pub(crate) async fn open(self) -> Result<Cache> {
        let has_content = self.saved.is_some();
        let first = match self.saved {
            Some(saved) => PublishedState {
                snapshot: saved.snapshot,
                confirmed: ConfirmedAt::Saved(saved.saved),
                behind: Some(CacheLag::FromFile { saved: saved.saved }),
                watch: None,
                loads: 0,
            },
            None => PublishedState {
                snapshot: CacheSnapshot::default(),
                confirmed: ConfirmedAt::Now(Instant::now()),
                behind: None,
                watch: None,
                loads: 0,
            },
        };
        let state = Arc::new(CacheState::new(first, self.file_error));
        let background = self.client.for_background();
        let (ticks, receiver) = watch::channel(());
        let (first_load, mut loaded) = oneshot::channel();
        let (reads, reader) =
            RevisionReads::new(background.clone(), self.range.clone(), state.clone());
        let mut task = CacheTask::new(
            background.clone(),
            self.range.clone(),
            self.max_bytes,
            state.clone(),
            ticks.clone(),
        );
        task.report_first_load(first_load, self.wait || has_content);
        let writer = self
            .writer
            .map(|file| FileWriter::new(&background, file, &self.range));
        let shared = state.clone();
        // On the client's thread, so that the cache stays current while the application blocks its own threads.
        let started = self.client.run(move || {
            actix_rt::spawn(reader.run());
            // The client's thread must not end before the file is written.
            let unfinished = writer.is_some().then(UnfinishedDelivery::new);
            actix_rt::spawn(async move {
                let mut writer = writer;
                tokio::select! {
                    () = ticks.closed() => {}
                    () = shared.closing() => {}
                    () = task.run() => {}
                    () = write_after_changes(&mut writer, &shared) => {}
                }
                write_file_of(&mut writer, &shared, true).await;
                drop(unfinished);
                drop(task);
            });
        });
        if !started {
            return Err(Error::shut_down());
        }
        let cache = Cache::new(self.client, state, receiver, reads);
        if has_content {
            // After the timeout, the content of the file is served.
            match timeout(self.start_timeout, &mut loaded).await {
                Ok(Ok(result)) => result?,
                Ok(Err(_)) => return Err(Error::shut_down()),
                Err(_) => {
                    loaded.close();
                    // The result may have arrived with the timeout.
                    if let Ok(result) = loaded.try_recv() {
                        result?;
                    }
                }
            }
        } else {
            loaded.await.unwrap_or_else(|_| Err(Error::shut_down()))?;
        }
        Ok(cache)
    }
}

/// Writes the file after changes, for as long as it is polled.
async fn write_after_changes(writer: &mut Option<FileWriter>, state: &CacheState) {
    loop {
        match writer {
            Some(writer) => {
                state.changed().await;
                writer.debounce().await;
            }
            None => pending::<()>().await,
        }
        write_file_of(writer, state, false).await;
    }
}

async fn write_file_of(writer: &mut Option<FileWriter>, state: &CacheState, is_end: bool) {
    let Some(writer) = writer else { return };
    let snapshot = {
        let published = state.load();
        // Until the first load, the content is that of the file.
        if published.loads == 0 {
            return;
        }
        published.snapshot.clone()
    };
    if let Some(result) = writer.write(snapshot, is_end).await {
        state.set_file_error(result.err());
    }
}
