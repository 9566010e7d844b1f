//! How a watch is asked for.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use actix::Recipient;
use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::engine::{
    event_buffer::EventBuffer,
    hub::{DeliverWatch, StartWatch},
    known_keys::KnownKeys,
    range_reader::{RangeToRead, read_range},
    watch_spec::WatchSpec,
};
use super::{Watch, WatchEvent, WatchHandle};
use crate::{
    actor::SubscribeWatch,
    call::NEVER,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    proto::watch_create_request::FilterType,
    request::{
        ResponseFuture,
        key_range::{Span, spans},
    },
};

/// The events that wait for a slow reader before the watch lags.
const BUFFER: usize = 8192;

/// How often the keys of a range are read at the most, if compactions come between the pages.
const READS: usize = 5;

/// A watch to be opened: awaiting it gives a [`Watch`], [`deliver_to`](Self::deliver_to) delivers it to an actor. Free
/// (`WatchRequest<()>`) it becomes a message to the actor [`Etcd`](crate::Etcd) with [`to`](WatchRequest::to).
///
/// Fails if the server refuses the watch, or no member creates it within the client's `request_timeout`. With
/// [`resync`](Self::resync), each page of the keys that are read before has that time as well.
#[derive(Debug, Clone)]
#[must_use = "a watch is opened when this is awaited"]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub struct WatchRequest<C = Client> {
    client: C,
    span: Span,
    start_revision: i64,
    no_puts: bool,
    no_deletes: bool,
    prev_kv: bool,
    progress_notify: bool,
    fragment: bool,
    require_leader: bool,
    status_events: bool,
    resync: bool,
    buffer: usize,
    max_outage: Option<Duration>,
}

spans!(<C> WatchRequest<C>);

impl<C> WatchRequest<C> {
    pub(super) fn new(client: C, key: Bytes) -> Self {
        Self {
            client,
            span: Span::key(key),
            start_revision: 0,
            no_puts: false,
            no_deletes: false,
            prev_kv: false,
            progress_notify: false,
            fragment: true,
            require_leader: true,
            status_events: false,
            resync: false,
            buffer: BUFFER,
            max_outage: None,
        }
    }

    /// The first revision wanted, in the past or in the future. Default: 0, what happens from now on.
    pub fn start_revision(mut self, revision: i64) -> Self {
        self.start_revision = revision;
        self
    }

    /// With each event, the key as it was before. Default: without.
    pub fn prev_kv(mut self) -> Self {
        self.prev_kv = true;
        self
    }

    /// Now and then an item [`WatchEvent::Progress`] while nothing happens (etcd's default: every 10 minutes).
    /// Default: none.
    pub fn progress_notify(mut self) -> Self {
        self.progress_notify = true;
        self
    }

    /// Without puts. Default: with.
    pub fn filter_puts(mut self) -> Self {
        self.no_puts = true;
        self
    }

    /// Without deletes. Default: with.
    pub fn filter_deletes(mut self) -> Self {
        self.no_deletes = true;
        self
    }

    /// Whether the server may split answers that are too large for one message. They are put together again: a
    /// revision is always delivered whole. Default: yes.
    pub fn fragment(mut self, fragment: bool) -> Self {
        self.fragment = fragment;
        self
    }

    /// Whether only a member that has a leader will do. Without, a member cut off from the others may carry the watch
    /// and deliver nothing for as long as it is. Default: yes.
    pub fn require_leader(mut self, require: bool) -> Self {
        self.require_leader = require;
        self
    }

    /// How many events may wait for the reader, beyond the last answer of the server. When there are as many, the
    /// watch lags: see [`WatchEvent::Paused`]. A server that sends faster than that is held back for a reader that
    /// reads 100,000 events a second or more. Default: 8192.
    pub fn buffer(mut self, events: usize) -> Self {
        self.buffer = events;
        self
    }

    /// How long the watch may be without a member before it ends with
    /// [`WatchEnd::OutageTooLong`](super::WatchEnd::OutageTooLong). Default: no limit.
    pub fn max_outage(mut self, longest: Duration) -> Self {
        self.max_outage = Some(longest.min(NEVER));
        self
    }

    /// Tells [`WatchEvent::Disconnected`], [`WatchEvent::Resumed`] and [`WatchEvent::Paused`], too. Default: no.
    pub fn status_events(mut self) -> Self {
        self.status_events = true;
        self
    }

    /// Goes on after a compaction that overtook the watch: with one item [`WatchEvent::Resynced`] that tells what has
    /// changed in sum. For that the watch reads the keys of the range when it is opened, and remembers them. Not for
    /// watches with filters. Default: the watch ends with [`WatchEnd::Compacted`](super::WatchEnd::Compacted).
    pub fn resync(mut self) -> Self {
        self.resync = true;
        self
    }
}

impl WatchRequest<()> {
    /// Binds the watch to a client: awaiting it opens it.
    pub fn on(self, client: &Client) -> WatchRequest {
        WatchRequest {
            client: client.clone(),
            span: self.span,
            start_revision: self.start_revision,
            no_puts: self.no_puts,
            no_deletes: self.no_deletes,
            prev_kv: self.prev_kv,
            progress_notify: self.progress_notify,
            fragment: self.fragment,
            require_leader: self.require_leader,
            status_events: self.status_events,
            resync: self.resync,
            buffer: self.buffer,
            max_outage: self.max_outage,
        }
    }

    /// A message to the actor [`Etcd`](crate::Etcd): open the watch, and send its items to this actor.
    pub fn deliver_to(self, recipient: Recipient<WatchEvent>) -> SubscribeWatch {
        SubscribeWatch {
            watch: self,
            recipient,
        }
    }
}

impl WatchRequest {
    /// Opens the watch and sends its items to an actor, the next one when the last was handled. It ends with the actor,
    /// with the client, or by the handle.
    pub async fn deliver_to(self, recipient: Recipient<WatchEvent>) -> Result<WatchHandle> {
        let client = self.client.clone();
        let watch = self.await?;
        let handle = watch.handle();
        client.watches().do_send(DeliverWatch { watch, recipient });
        Ok(handle)
    }

    fn spec(&self) -> Result<WatchSpec> {
        let (key, range_end) = self.span.resolve()?;
        if self.start_revision < 0 {
            return Err(Error::invalid("`start_revision` is negative"));
        }
        if self.buffer == 0 {
            return Err(Error::invalid("`buffer` is zero"));
        }
        if self.resync && (self.no_puts || self.no_deletes) {
            return Err(Error::invalid(
                "`resync` needs all events: it does not go with `filter_puts` and `filter_deletes`",
            ));
        }
        let filters = [
            (self.no_puts, FilterType::Noput),
            (self.no_deletes, FilterType::Nodelete),
        ];
        Ok(WatchSpec {
            key,
            range_end,
            filters: filters
                .into_iter()
                .filter(|(wanted, _)| *wanted)
                .map(|(_, filter)| filter.into())
                .collect(),
            prev_kv: self.prev_kv,
            progress_notify: self.progress_notify,
            fragment: self.fragment,
            require_leader: self.require_leader,
            status_events: self.status_events,
            resync: self.resync,
            max_outage: self.max_outage,
        })
    }

    async fn open(self) -> Result<Watch> {
        let spec = self.spec()?;
        let timeout = self.client.request_timeout();
        let mut start_revision = self.start_revision;
        let known_keys = if self.resync {
            let (known, revision) = self.known_keys(&spec, timeout).await?;
            if start_revision == 0 {
                start_revision = revision + 1;
            }
            Some(known)
        } else {
            None
        };
        // A large range takes its time to read, page by page; the watch itself is created at once.
        let deadline = Instant::now() + timeout;
        let buffer = EventBuffer::new(self.buffer);
        let (opened, told) = oneshot::channel();
        let start = StartWatch {
            spec: Arc::new(spec),
            start_revision,
            known_keys,
            buffer: buffer.clone(),
            opened,
        };
        let hub = self.client.watches();
        let (id, actor) = hub.send(start).await.map_err(|_| {
            if hub.connected() {
                let text = "the actor that opens watches crashed on this one; open it again";
                Error::new(ErrorKind::Internal, Outcome::NotSent, text)
            } else {
                Error::shut_down()
            }
        })?;
        let watch = Watch::new(id, actor, buffer, timeout);
        match timeout_at(deadline, told).await {
            Ok(Ok(Ok(()))) => Ok(watch),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(Error::shut_down()),
            Err(_) => Err(self.late()),
        }
    }

    /// The keys of the range just before the watch, and the revision they were read at.
    async fn known_keys(&self, spec: &WatchSpec, timeout: Duration) -> Result<(KnownKeys, i64)> {
        if self.start_revision == 1 {
            return Ok((KnownKeys::default(), 0));
        }
        let range = RangeToRead {
            key: spec.key.clone(),
            end: spec.range_end.clone(),
            revision: (self.start_revision - 1).max(0),
            keys_only: true,
        };
        let mut reads = 0;
        loop {
            let mut known = KnownKeys::default();
            let read = read_range(self.client.caller(), range.clone(), timeout, |page| {
                for kv in page {
                    known.put(&kv.key, kv.mod_revision);
                }
            });
            reads += 1;
            let error = match read.await {
                Ok(revision) => return Ok((known, revision)),
                Err(error) => error,
            };
            match error.kind() {
                // What was before the start can't be known any more, or not yet.
                ErrorKind::Compacted | ErrorKind::FutureRevision if self.start_revision > 0 => {
                    return Ok((KnownKeys::default(), 0));
                }
                // The revision of the first page was compacted before the last one was read.
                ErrorKind::Compacted if reads < READS => {}
                _ => return Err(error),
            }
        }
    }

    fn late(&self) -> Error {
        let set = self.client.caller().ready.load();
        if set.ready.is_empty() {
            return Error::new(ErrorKind::Unavailable, Outcome::NotSent, set.complaints());
        }
        Error::new(
            ErrorKind::DeadlineExceeded,
            Outcome::Unknown,
            "no member created the watch in time",
        )
    }
}

impl IntoFuture for WatchRequest {
    type Output = Result<Watch>;
    type IntoFuture = ResponseFuture<Watch>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
