//! What the owner of a watch holds.

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
    watch_actor::{BufferDrained, CancelWatch, RequestProgress, WatchActor},
};
use super::{WatchEvent, event::RevisionSplitter};
use crate::{
    error::{Error, ErrorKind, Outcome},
    runtime::backoff::Backoff,
};

/// Delays between progress requests that the server does not answer.
const PROGRESS_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// A watch: a stream of [`WatchEvent`]s that goes on over any number of reconnects. The last item is
/// [`WatchEvent::Ended`]. Dropping it ends it on the server, too.
#[must_use = "a watch that is dropped is cancelled"]
pub struct Watch {
    link: Link,
    current: Option<RevisionSplitter>,
    ended: bool,
}

impl Watch {
    pub(crate) fn new(
        id: u64,
        actor: Addr<WatchActor>,
        buffer: Arc<EventBuffer>,
        timeout: Duration,
    ) -> Self {
        Self {
            link: Link {
                id,
                actor,
                buffer,
                timeout,
            },
            current: None,
            ended: false,
        }
    }

    /// The next item; `None` after the last one.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Ends the watch on the server. What has arrived can still be read, then comes the last item.
    pub fn cancel(&self) {
        self.link.actor.do_send(CancelWatch);
    }

    /// Asks the server how far the watch has come: everything up to that revision has arrived, and is in this stream
    /// before an item [`WatchEvent::Progress`]. A server that is silent is asked again.
    ///
    /// Fails with [`ErrorKind::DeadlineExceeded`] after the client's `request_timeout`, with
    /// [`ErrorKind::WatchCanceled`] if the watch ends before or has ended, and with [`ErrorKind::Shutdown`] if the
    /// client has.
    pub fn request_progress(&self) -> impl Future<Output = Result<i64, Error>> + Send + use<> {
        self.link.clone().request_progress()
    }

    /// Everything up to this revision was read from this stream. A watch with `start_revision` one above goes on
    /// where this one is.
    pub fn revision(&self) -> i64 {
        self.link.buffer.delivered()
    }

    /// A number that no other watch of this client has.
    pub fn id(&self) -> u64 {
        self.link.id
    }

    pub(super) fn handle(&self) -> WatchHandle {
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
                return Poll::Ready(Some(WatchEvent::Events(events)));
            }
            let TakenItem { item, drained } = ready!(self.link.buffer.poll_take(cx));
            if drained {
                self.link.actor.do_send(BufferDrained);
            }
            let event = match item {
                BufferItem::Batch(events) => {
                    self.current = Some(RevisionSplitter::new(events));
                    continue;
                }
                BufferItem::Single(event) => event,
            };
            match &event {
                WatchEvent::Progress(revision) => self.link.buffer.set_delivered(*revision),
                WatchEvent::Resynced(resynced) => {
                    self.link.buffer.set_delivered(resynced.revision);
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
        f.debug_struct("Watch")
            .field("id", &self.id())
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

/// Ends a watch that is delivered to an actor. Dropping it ends the watch, too, unless it was detached.
#[must_use = "a watch whose handle is dropped is cancelled"]
pub struct WatchHandle {
    link: Link,
    detached: bool,
}

impl WatchHandle {
    /// Ends the watch on the server; the actor gets what has arrived, then the last item.
    pub fn cancel(&self) {
        self.link.actor.do_send(CancelWatch);
    }

    /// Lets the watch go on until its actor or the client ends.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// See [`Watch::request_progress`].
    pub fn request_progress(&self) -> impl Future<Output = Result<i64, Error>> + Send + use<> {
        self.link.clone().request_progress()
    }

    /// Everything up to this revision was sent to the actor.
    pub fn revision(&self) -> i64 {
        self.link.buffer.delivered()
    }

    /// A number that no other watch of this client has.
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
        f.debug_struct("WatchHandle")
            .field("id", &self.id())
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

/// The way to the watch's actor.
#[derive(Clone)]
struct Link {
    id: u64,
    actor: Addr<WatchActor>,
    buffer: Arc<EventBuffer>,
    timeout: Duration,
}

impl Link {
    async fn request_progress(self) -> Result<i64, Error> {
        let deadline = Instant::now() + self.timeout;
        let (sender, mut progress) = oneshot::channel();
        let mut reply = Some(sender);
        let mut backoff = PROGRESS_BACKOFF.start();
        let mut delay = backoff.next_delay(0.5);
        loop {
            self.actor.do_send(RequestProgress {
                reply: reply.take(),
            });
            match timeout_at(deadline.min(Instant::now() + delay), &mut progress).await {
                Ok(Ok(revision)) => return Ok(revision),
                Ok(Err(_)) => match self.buffer.end_cause() {
                    Some(EndCause::Watch) => return Err(ended()),
                    None if self.actor.connected() => {
                        // The watch's actor panicked and lost the request.
                        let (sender, receiver) = oneshot::channel();
                        (reply, progress) = (Some(sender), receiver);
                    }
                    Some(EndCause::ClientShutdown) | None => return Err(Error::shut_down()),
                },
                Err(_) if Instant::now() >= deadline => {
                    return Err(Error::new(
                        ErrorKind::DeadlineExceeded,
                        Outcome::NotSent,
                        "the server sent no progress in time; it sends none while another watch \
                         of the same stream is behind",
                    ));
                }
                Err(_) => delay = backoff.next_delay(0.5),
            }
        }
    }
}

fn ended() -> Error {
    Error::new(
        ErrorKind::WatchCanceled,
        Outcome::Unknown,
        "the watch ended before the server answered",
    )
}
