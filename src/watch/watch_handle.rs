//! An open watch, and the handle of a watch that is delivered to an actor.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use actix::Addr;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tokio_stream::Stream;

use super::engine::{
    event_buffer::{BufferItem, EndCause, EventBuffer, TakenItem},
    freshness_record::FreshnessRecord,
    watch_actor::{BufferDrained, CancelWatch, RequestProgress, WatchActor},
};
use super::{Freshness, WatchEvent, event::RevisionSplitter, watch_view::WatchView};
use crate::{
    error::{Error, ErrorKind, Outcome},
    runtime::backoff::Backoff,
};

/// Delays before a progress request without a response is repeated.
const PROGRESS_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// An open watch: a stream of [`WatchEvent`]s that continues over any number of reconnects. The last item is
/// [`WatchEvent::Ended`]. Dropping the watch cancels it on the server.
#[must_use = "a dropped watch is cancelled"]
pub struct Watch {
    link: WatchLink,
    view: WatchView,
    current: Option<RevisionSplitter>,
    ended: bool,
}

impl Watch {
    pub(crate) fn new(
        id: u64,
        actor: Addr<WatchActor>,
        buffer: Arc<EventBuffer>,
        freshness: Arc<FreshnessRecord>,
        timeout: Duration,
    ) -> Self {
        Self {
            link: WatchLink {
                id,
                actor,
                buffer,
                freshness,
                timeout,
            },
            view: WatchView::default(),
            current: None,
            ended: false,
        }
    }

    /// Returns the watch with the view of its client.
    pub(super) fn with_view(mut self, view: WatchView) -> Self {
        self.view = view;
        self
    }

    /// Waits for the next item. Returns `None` after [`WatchEvent::Ended`].
    pub async fn next(&mut self) -> Option<WatchEvent> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Cancels the watch on the server. Items that have arrived can still be read, then [`WatchEvent::Ended`].
    pub fn cancel(&self) {
        self.link.actor.do_send(CancelWatch);
    }

    /// Requests the progress of the watch from the server. Returns a revision up to which every event has arrived: this
    /// stream contains them all before an item [`WatchEvent::Progress`]. Repeats the request until the server responds.
    ///
    /// Fails with [`ErrorKind::DeadlineExceeded`] after the client's `request_timeout`, with
    /// [`ErrorKind::WatchCanceled`] if the watch has ended or ends meanwhile, and with [`ErrorKind::Shutdown`] if the
    /// client was shut down.
    pub fn request_progress(&self) -> impl Future<Output = Result<i64, Error>> + Send + use<> {
        self.link.clone().request_progress()
    }

    /// Returns the revision up to which everything was read from this stream. A new watch continues here with
    /// `start_revision(revision + 1)`.
    pub fn revision(&self) -> i64 {
        self.link.buffer.delivered()
    }

    /// Returns how complete the watch is: the revision up to which everything was read from this stream, the time as of
    /// which that is known, and where the watch runs or why it does not receive events.
    pub fn freshness(&self) -> Freshness {
        self.link.freshness()
    }

    /// Returns the id of the watch, unique within its client. It is not the watch id that etcd uses.
    pub fn id(&self) -> u64 {
        self.link.id
    }

    pub(crate) fn handle(&self) -> WatchHandle {
        WatchHandle {
            link: self.link.clone(),
            detached: false,
        }
    }

    #[cfg(feature = "test-faults")]
    pub(crate) fn actor(&self) -> &Addr<WatchActor> {
        &self.link.actor
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            if let Some(events) = RevisionSplitter::take(&mut self.current) {
                self.link.buffer.set_delivered(events.revision());
                self.view.delivered(events.revision());
                return Poll::Ready(Some(WatchEvent::Events(events)));
            }
            let TakenItem { item, drained } = ready!(self.link.buffer.poll_take(cx));
            if drained {
                self.link.actor.do_send(BufferDrained);
            }
            let mut event = match item {
                BufferItem::Batch { mut events, .. } => {
                    self.view.translate_events(&mut events);
                    self.current = Some(RevisionSplitter::new(events));
                    continue;
                }
                BufferItem::UnconfirmedProgress(revision) => {
                    return Poll::Ready(Some(WatchEvent::Progress(revision)));
                }
                BufferItem::Single(event) => event,
            };
            match &mut event {
                WatchEvent::Progress(revision) => {
                    self.link.buffer.set_delivered(*revision);
                    self.view.delivered(*revision);
                }
                WatchEvent::Resynced(resynced) => {
                    self.view.translate_resynced(resynced);
                    self.view.delivered(resynced.revision);
                    self.link.buffer.reset_delivered(resynced.revision);
                    self.link.freshness.resync_read();
                }
                WatchEvent::Ended(_) => self.ended = true,
                _ => {}
            }
            return Poll::Ready(Some(event));
        }
    }
}

impl Stream for Watch {
    type Item = WatchEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchEvent>> {
        self.poll(cx)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.ended {
            self.cancel();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt("Watch", f)
    }
}

/// Handle of a watch that is delivered to an actor. Dropping it cancels the watch, unless it was detached.
#[must_use = "dropping the handle cancels the watch"]
pub struct WatchHandle {
    link: WatchLink,
    detached: bool,
}

impl WatchHandle {
    /// Cancels the watch on the server. The actor receives the items that have arrived, then [`WatchEvent::Ended`].
    pub fn cancel(&self) {
        self.link.actor.do_send(CancelWatch);
    }

    /// Drops the handle without cancelling the watch, which then runs until its actor or the client ends.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// Requests the progress of the watch from the server, see [`Watch::request_progress`].
    pub fn request_progress(&self) -> impl Future<Output = Result<i64, Error>> + Send + use<> {
        self.link.clone().request_progress()
    }

    /// Returns the revision up to which everything was sent to the actor.
    pub fn revision(&self) -> i64 {
        self.link.buffer.delivered()
    }

    /// Returns how complete the watch is, see [`Watch::freshness`]. An event counts as read when it was sent to the actor.
    pub fn freshness(&self) -> Freshness {
        self.link.freshness()
    }

    /// Returns the id of the watch, unique within its client. It is not the watch id that etcd uses.
    pub fn id(&self) -> u64 {
        self.link.id
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        if !self.detached {
            self.cancel();
        }
    }
}

impl fmt::Debug for WatchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt("WatchHandle", f)
    }
}

/// Connects the owner of a watch to its actor and its buffer.
#[derive(Clone)]
struct WatchLink {
    id: u64,
    actor: Addr<WatchActor>,
    buffer: Arc<EventBuffer>,
    freshness: Arc<FreshnessRecord>,
    timeout: Duration,
}

impl WatchLink {
    fn fmt(&self, type_name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(type_name)
            .field("id", &self.id)
            .field("revision", &self.buffer.delivered())
            .finish_non_exhaustive()
    }

    fn freshness(&self) -> Freshness {
        self.freshness.freshness(self.buffer.delivered())
    }

    async fn request_progress(self) -> Result<i64, Error> {
        let deadline = Instant::now() + self.timeout;
        let (sender, mut revision) = oneshot::channel();
        let mut reply = Some(sender);
        let mut backoff = PROGRESS_BACKOFF.start();
        let mut delay = backoff.next_delay(0.5);
        loop {
            self.actor.do_send(RequestProgress {
                reply: reply.take(),
            });
            match timeout_at(deadline.min(Instant::now() + delay), &mut revision).await {
                Ok(Ok(revision)) => return Ok(revision),
                Ok(Err(_)) => match self.buffer.end_cause() {
                    Some(EndCause::Watch) => return Err(ended_error()),
                    None if self.actor.connected() => {
                        // The watch's actor panicked and lost the request.
                        let (sender, receiver) = oneshot::channel();
                        (reply, revision) = (Some(sender), receiver);
                    }
                    Some(EndCause::ClientShutdown) | None => return Err(Error::shut_down()),
                },
                Err(_) if Instant::now() >= deadline => {
                    return Err(Error::new(
                        ErrorKind::DeadlineExceeded,
                        Outcome::NotSent,
                        "the server sent no progress in time; it sends none while another watch \
                         of the same stream is behind, and etcd's gRPC proxy sends none on request",
                    ));
                }
                Err(_) => delay = backoff.next_delay(0.5),
            }
        }
    }
}

fn ended_error() -> Error {
    Error::new(
        ErrorKind::WatchCanceled,
        Outcome::NotSent,
        "the watch ended before the server sent its progress",
    )
}
