//! A request to open a watch.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use actix::{Addr, Recipient};
use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::engine::{
    event_buffer::{BufferSize, EventBuffer},
    freshness_record::FreshnessRecord,
    hub::{DeliverWatch, StartWatch},
    known_keys::KnownKeys,
    range_reader::{RangeToRead, read_range},
    watch_actor::WatchActor,
    watch_service::WatchClient,
    watch_spec::{WatchOptions, WatchSpec},
};
use super::{SubscribeWatch, Watch, WatchEnd, WatchEvent, WatchHandle, watch_view::WatchView};
use crate::{
    call::MAX_TIMEOUT,
    connection::Connection,
    error::{Error, ErrorKind, Outcome, Result},
    request::{
        ResponseFuture,
        key_range::{KeyRange, key_range_methods},
    },
    retry::availability::attempt_until_available,
    runtime::delivery::SendOnDrop,
    transport::channel::StreamUse,
};

/// Maximum number of attempts to read a range whose revision is compacted between two pages.
const MAX_KEY_READS: usize = 5;

/// A request to open a watch: awaiting it returns a [`Watch`], [`deliver_to`](Self::deliver_to) delivers the watch to
/// an actor. Without a client (`WatchRequest<()>`), `deliver_to` returns a message for the [`Etcd`](crate::Etcd) actor.
///
/// Fails if an option is invalid, if the server refuses the watch, or if no member creates it within the client's
/// `request_timeout`; with [`wait`](Self::wait), there is no such limit. With [`resync`](Self::resync), the keys of the
/// range are read first; each page of that read has the same timeout.
#[derive(Debug, Clone)]
#[must_use = "a watch is opened when its request is awaited"]
pub struct WatchRequest<C = ()> {
    client: C,
    range: KeyRange,
    options: WatchOptions,
    /// Whether opening the watch has no deadline.
    wait: bool,
}

key_range_methods!(<C> WatchRequest<C>);

impl<C> WatchRequest<C> {
    pub(super) fn new(client: C, key: Bytes) -> Self {
        Self {
            client,
            range: KeyRange::key(key),
            options: WatchOptions::default(),
            wait: false,
        }
    }

    /// Waits without a deadline until a member creates the watch: temporary errors, such as an unreachable cluster, are
    /// retried. Other errors, such as a denied permission, fail at once. Fails when the client is shut down. Dropping
    /// the future stops waiting. Default: fails after the client's `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }

    /// Returns whether opening the watch has no deadline.
    pub(crate) fn is_waiting(&self) -> bool {
        self.wait
    }

    /// Returns whether the first revision to deliver is set.
    pub(crate) fn has_start_revision(&self) -> bool {
        self.options.start_revision != 0
    }

    /// Sets the first revision to deliver, in the past or in the future. Default: 0, which means from now on.
    pub fn start_revision(mut self, revision: i64) -> Self {
        self.options.start_revision = revision;
        self
    }

    /// Continues a read of the range at this revision. A cluster that is behind it was restored from a backup.
    pub(crate) fn after_read(mut self, revision: i64) -> Self {
        self.options.start_revision = revision + 1;
        self.options.read_revision = revision;
        self
    }

    /// Adds the previous key-value pair to each event. Default: not added.
    pub fn prev_kv(mut self) -> Self {
        self.options.prev_kv = true;
        self
    }

    /// Delivers [`WatchEvent::Progress`] from time to time while there are no events; the server sets the interval
    /// (etcd's default: 10 minutes). Default: no progress events.
    pub fn progress_notify(mut self) -> Self {
        self.options.progress_notify = true;
        self
    }

    /// Excludes puts. Default: included.
    pub fn filter_puts(mut self) -> Self {
        self.options.filter_puts = true;
        self
    }

    /// Excludes deletes. Default: included.
    pub fn filter_deletes(mut self) -> Self {
        self.options.filter_deletes = true;
        self
    }

    /// Sets whether the server may split responses that are too large for one message. The watch joins them again, so a
    /// revision is always delivered complete. Default: `true`.
    pub fn fragment(mut self, fragment: bool) -> Self {
        self.options.fragment = fragment;
        self
    }

    /// Sets whether the watch requires a member that has a leader. If `false`, the watch may run on a member that is
    /// cut off from the cluster, and receives no events until that member is connected again. Default: `true`.
    pub fn require_leader(mut self, require: bool) -> Self {
        self.options.require_leader = require;
        self
    }

    /// Sets how many events are buffered for the consumer; the last response of the server may exceed this number. A
    /// full buffer pauses the watch, see [`WatchEvent::Paused`]. A consumer that reads at least 100,000 events per
    /// second is not paused: the client reads more slowly from the server instead. Must not be 0. Default: 8192.
    pub fn buffer(mut self, events: usize) -> Self {
        self.options.buffer = events;
        self
    }

    /// Sets how many bytes of keys and values are buffered for the consumer, in addition to the limit of
    /// [`buffer`](Self::buffer): the watch is paused by the limit that is reached first. The last response of the server
    /// may exceed it, so a revision of any size is delivered. Must not be 0. Default: 16 MiB.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.options.buffer_bytes = bytes;
        self
    }

    /// Sets how long the watch may be interrupted before it ends with
    /// [`WatchEnd::OutageTooLong`]. Default: no limit.
    pub fn max_outage(mut self, duration: Duration) -> Self {
        self.options.max_outage = Some(duration.min(MAX_TIMEOUT));
        self
    }

    /// Delivers [`WatchEvent::Disconnected`], [`WatchEvent::Resumed`] and [`WatchEvent::Paused`] as well. Default: not
    /// delivered.
    pub fn status_events(mut self) -> Self {
        self.options.status_events = true;
        self
    }

    /// Delivers [`WatchEvent::Freshness`] at this interval: up to which revision the watch is complete and as of when, or
    /// why it does not receive events. Each report causes one request for progress on the stream of the watch, so that
    /// the next report is at most an interval and a round trip old. Must not be 0. Default: no reports.
    pub fn report_freshness(mut self, interval: Duration) -> Self {
        self.options.freshness_interval = Some(interval.min(MAX_TIMEOUT));
        self
    }

    /// Continues after a compaction of revisions that were not delivered yet, and after a restore of the cluster from an
    /// old backup, with one [`WatchEvent::Resynced`] that contains the sum of the changes. To compute it, the watch reads
    /// the keys of the range when it is opened and keeps them in memory. Cannot be combined with filters. Default: the
    /// watch ends with [`WatchEnd::Compacted`] or [`WatchEnd::RevisionRegressed`].
    ///
    /// A restore is detected by a revision that is lower than one the watch has received. It is not detected if the
    /// restored cluster has passed that revision before the client reaches it.
    pub fn resync(mut self) -> Self {
        self.options.resync = true;
        self
    }

    /// Runs the watch on two members at once and delivers each revision from the member that sends it first, exactly
    /// once and in order. A member that is killed, frozen, cut off or slow then delays no event.
    /// [`WatchEvent::Disconnected`] and `max_outage` concern only the time in which neither member serves the watch.
    ///
    /// The second member serves the watch soon after the first one has created it. While only one member is usable, the
    /// watch runs on that one, and continues on two once another member is usable. Members are distinguished by their
    /// ids, so two endpoints of one member count as one. A client with one endpoint, or with a policy that connects
    /// only one member, never has a second one.
    ///
    /// Every event is received and decoded twice, so the traffic is twice that of a plain watch. An idle watch takes about
    /// 5 KiB of memory instead of 3 KiB; the buffer and the keys for `resync` exist once. Default: one member.
    pub fn hedged(mut self) -> Self {
        self.options.hedged = true;
        self
    }
}

impl WatchRequest<()> {
    /// Binds the request to a client.
    pub fn on<C: WatchClient>(self, client: &C) -> WatchRequest<C> {
        WatchRequest {
            client: client.clone(),
            range: self.range,
            options: self.options,
            wait: self.wait,
        }
    }

    /// Returns a message for the [`Etcd`](crate::Etcd) actor, which opens the watch and sends its events to
    /// `recipient`.
    pub fn deliver_to(self, recipient: Recipient<WatchEvent>) -> SubscribeWatch {
        SubscribeWatch {
            watch: self,
            recipient,
        }
    }
}

impl<C: WatchClient> WatchRequest<C> {
    /// Opens the watch and sends its events to an actor, each one when the actor has handled the previous one. The
    /// watch ends with the actor, with the client, or when the handle is cancelled or dropped.
    ///
    /// Fails like the request itself, see [`WatchRequest`].
    pub async fn deliver_to(self, recipient: Recipient<WatchEvent>) -> Result<WatchHandle> {
        let client = self.client.clone();
        let watch = self.await?;
        let handle = watch.handle();
        let ended = WatchEvent::Ended(WatchEnd::Shutdown);
        client.watches().hub.do_send(DeliverWatch {
            watch,
            if_shut_down: SendOnDrop::new(recipient.clone(), Some(ended)),
            recipient,
        });
        Ok(handle)
    }

    async fn open(&self) -> Result<Watch> {
        let known_keys = if self.options.resync {
            // Boxed: otherwise the read would enlarge every future that opens a watch.
            Some(Box::pin(self.read_known_keys()).await?)
        } else {
            None
        };
        let WatchOpening {
            started,
            opened,
            buffer,
            freshness,
        } = self.start(known_keys)?;
        let timeout = self.client.request_timeout();
        // The deadline starts after the read: reading a large range takes long, and the create has its own timeout.
        let deadline = Instant::now() + timeout;
        let (id, actor) = started.await.map_err(|_| {
            if self.client.watches().hub.connected() {
                let reason = "the watch hub panicked while it opened the watch";
                Error::new(ErrorKind::Internal, Outcome::NotSent, reason)
            } else {
                Error::shut_down()
            }
        })?;
        let watch = Watch::new(id, actor, buffer, freshness, timeout);
        match timeout_at(deadline, opened).await {
            Ok(Ok(Ok(()))) => {
                let cluster = self.client.caller().context.cluster.get();
                let view = WatchView::new(self.client.view().clone(), cluster);
                Ok(watch.with_view(view))
            }
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(Error::shut_down()),
            Err(_) => Err(timeout_error(&self.client)),
        }
    }

    /// Reads the keys before a watch that resyncs. Returns them and their revision.
    async fn read_known_keys(&self) -> Result<(KnownKeys, i64)> {
        read_known_keys(&self.client, &self.spec()?).await
    }

    /// Returns the range and the options. The engine knows only keys of the cluster; [`WatchView`] translates them.
    fn spec(&self) -> Result<WatchSpec> {
        let mut spec = validate(&self.range, self.options.clone())?;
        if let Some(namespace) = self.client.view().namespace() {
            namespace.add_to_range(&mut spec.key, &mut spec.range_end);
        }
        Ok(spec)
    }

    /// Sends the watch to the hub. Not `async`: otherwise the values created here would enlarge the future that opens a
    /// watch, and thousands may be opened at once.
    fn start(&self, known_keys: Option<(KnownKeys, i64)>) -> Result<WatchOpening> {
        let mut spec = self.spec()?;
        let known_keys = known_keys.map(|(known_keys, revision)| {
            if spec.options.start_revision == 0 {
                spec.options.start_revision = revision + 1;
            }
            spec.options.read_revision = revision;
            known_keys
        });
        let buffer = EventBuffer::new(BufferSize {
            events: spec.options.buffer,
            bytes: spec.options.buffer_bytes,
        });
        let freshness = Arc::new(FreshnessRecord::new(Instant::now()));
        let (started_sender, started) = oneshot::channel();
        let (opened_sender, opened) = oneshot::channel();
        self.client.watches().hub.do_send(StartWatch {
            spec: Arc::new(spec),
            known_keys,
            buffer: buffer.clone(),
            freshness: freshness.clone(),
            started: started_sender,
            opened: opened_sender,
        });
        Ok(WatchOpening {
            started,
            opened,
            buffer,
            freshness,
        })
    }
}

/// A watch that was sent to the hub.
struct WatchOpening {
    /// Id and actor of the watch.
    started: oneshot::Receiver<(u64, Addr<WatchActor>)>,
    /// Whether the server has created the watch.
    opened: oneshot::Receiver<Result<()>>,
    buffer: Arc<EventBuffer>,
    freshness: Arc<FreshnessRecord>,
}

fn validate(range: &KeyRange, options: WatchOptions) -> Result<WatchSpec> {
    let (key, range_end) = range.resolve()?;
    if options.start_revision < 0 {
        return Err(Error::invalid("`start_revision` must not be negative"));
    }
    if options.buffer == 0 {
        return Err(Error::invalid("`buffer` must not be 0"));
    }
    if options.buffer_bytes == 0 {
        return Err(Error::invalid("`buffer_bytes` must not be 0"));
    }
    if options
        .freshness_interval
        .is_some_and(|interval| interval.is_zero())
    {
        return Err(Error::invalid("`report_freshness` must not be 0"));
    }
    if options.resync && (options.filter_puts || options.filter_deletes) {
        return Err(Error::invalid(
            "`resync` cannot be combined with `filter_puts` or `filter_deletes`",
        ));
    }
    Ok(WatchSpec {
        key,
        range_end,
        options,
    })
}

/// Reads the keys of the range as of the revision before the watch. Returns them and that revision.
async fn read_known_keys(client: &impl WatchClient, spec: &WatchSpec) -> Result<(KnownKeys, i64)> {
    let start_revision = spec.options.start_revision;
    if start_revision == 1 {
        return Ok((KnownKeys::default(), 0));
    }
    let range = RangeToRead {
        key: spec.key.clone(),
        end: spec.range_end.clone(),
        revision: (start_revision - 1).max(0),
        keys_only: true,
    };
    let page_timeout = client.request_timeout();
    let mut reads = 0;
    loop {
        let mut known_keys = KnownKeys::default();
        let read = read_range(client.caller(), range.clone(), page_timeout, |page| {
            for kv in page {
                known_keys.put(&kv.key, kv.mod_revision);
            }
        });
        reads += 1;
        let error = match read.await {
            Ok(revision) => return Ok((known_keys, revision)),
            Err(error) => error,
        };
        match error.kind() {
            // The revision before the start was compacted, or is in the future.
            ErrorKind::Compacted | ErrorKind::FutureRevision if start_revision > 0 => {
                return Ok((KnownKeys::default(), 0));
            }
            // The revision of the first page was compacted before the last page was read.
            ErrorKind::Compacted if reads < MAX_KEY_READS => {}
            _ => return Err(error),
        }
    }
}

fn timeout_error(client: &impl WatchClient) -> Error {
    let set = client.caller().ready_set.load();
    if set.ready.is_empty() {
        return set.none_ready();
    }
    let is_full =
        |connection: &Arc<Connection>| !connection.channel.has_free_slot(StreamUse::LongLived);
    let reason = if set.ready.iter().all(is_full) {
        "no connection allows another stream for the watch: the members or a proxy limit the \
         concurrent streams"
    } else {
        "no member created the watch in time"
    };
    Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason)
}

impl<C: WatchClient> IntoFuture for WatchRequest<C> {
    type Output = Result<Watch>;
    type IntoFuture = ResponseFuture<Watch>;

    fn into_future(self) -> Self::IntoFuture {
        // Without `wait`, a smaller future.
        if self.wait {
            Box::pin(async move { attempt_until_available(true, || self.open()).await })
        } else {
            Box::pin(async move { self.open().await })
        }
    }
}
