//! The bounded buffer between a watch and its consumer.
//!
//! The buffer allocates memory only for the items in it, so ten thousand idle watches are cheap. Its limits count
//! events and bytes. A batch is accepted whole while neither limit is reached, so a response of the server is never
//! split, and a revision larger than the limit passes. A full buffer pauses the watch until the consumer has read half
//! of it. Status events do not count; between two counted items there is at most one of each kind.
//!
//! A server can send faster than the consumer reads. So the stream waits while a buffer is nearly full, but only for
//! consumers that read fast enough, because the other watches of the stream wait as well. The watch of a slower
//! consumer is paused instead. However large a buffer is, the stream waits for a limited number of events and bytes,
//! and it waits for many buffers at the same time. [`buffer_size`] has the thresholds.

mod buffer_size;
mod buffer_writer;

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

pub(crate) use buffer_size::BufferSize;
pub(crate) use buffer_writer::BufferWriter;

use crate::{proto::Event, watch::WatchEvent};

/// How long the stream waits for a consumer per event: the consumer has to read 100,000 events per second.
const WAIT_PER_EVENT: Duration = Duration::from_micros(10);
/// Shortest wait; the timer's resolution is one millisecond.
const MIN_WAIT: Duration = Duration::from_millis(2);

/// An item of the buffer.
#[derive(Debug)]
pub(crate) enum BufferItem {
    /// Events of one or more complete revisions, in order.
    Batch { events: Vec<Event>, bytes: usize },
    /// Progress that may have overtaken events: the consumer has not received everything up to this revision.
    UnconfirmedProgress(i64),
    /// Any other event, delivered as it is.
    Single(WatchEvent),
}

impl BufferItem {
    /// Returns the size that the item counts for.
    fn size(&self) -> BufferSize {
        match self {
            Self::Batch { events, bytes } => BufferSize {
                events: events.len(),
                bytes: *bytes,
            },
            Self::Single(WatchEvent::Resynced(resynced)) => BufferSize::of_resync(resynced),
            Self::UnconfirmedProgress(_) | Self::Single(_) => BufferSize::default(),
        }
    }
}

/// The buffer of one watch, for its consumer and its stream. The watch writes through a [`BufferWriter`].
#[derive(Debug)]
pub(crate) struct EventBuffer {
    contents: Mutex<Contents>,
    limit: BufferSize,
    /// Sum over all items; changed under the lock.
    buffered_events: AtomicUsize,
    /// Sum over all items; changed under the lock.
    buffered_bytes: AtomicUsize,
    /// Last revision that the consumer received.
    delivered: AtomicI64,
}

#[derive(Debug, Default)]
struct Contents {
    items: VecDeque<BufferItem>,
    consumer: Option<Waker>,
    /// Streams that wait for room: at most two, if the watch is hedged.
    streams: Vec<Waker>,
    /// Whether the last wait of the stream timed out.
    too_slow: bool,
    /// Whether the watch is paused until the consumer has read half of the buffer.
    drain_requested: bool,
    ended: Option<EndCause>,
}

/// Why the watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCause {
    ClientShutdown,
    /// A reason that concerns only this watch.
    Watch,
}

/// An item that the consumer took.
pub(crate) struct TakenItem {
    pub(crate) item: BufferItem,
    /// Whether the watch is paused and there is room again. The consumer then has to send `BufferDrained`.
    pub(crate) drained: bool,
}

impl EventBuffer {
    pub(crate) fn new(limit: BufferSize) -> Arc<Self> {
        Arc::new(Self {
            contents: Mutex::default(),
            limit,
            buffered_events: AtomicUsize::new(0),
            buffered_bytes: AtomicUsize::new(0),
            delivered: AtomicI64::new(0),
        })
    }

    /// Returns the last revision that the consumer received.
    pub(crate) fn delivered(&self) -> i64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Has one caller at a time: the watch when it is created, then its only consumer.
    pub(crate) fn set_delivered(&self, revision: i64) {
        if revision > self.delivered() {
            self.delivered.store(revision, Ordering::Relaxed);
        }
    }

    /// Records that the consumer received the whole range as of `revision`. After a restore from a backup, the
    /// revision is lower than before. Called by the consumer.
    pub(crate) fn reset_delivered(&self, revision: i64) {
        self.delivered.store(revision, Ordering::Relaxed);
    }

    /// Returns why the watch ended, even if the consumer has not read its last item yet.
    pub(crate) fn end_cause(&self) -> Option<EndCause> {
        self.lock().ended
    }

    /// Takes the next item, or registers the consumer to be woken when there is one.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<TakenItem> {
        let mut contents = self.lock();
        let Some(item) = contents.items.pop_front() else {
            if !contents
                .consumer
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                contents.consumer = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        let size = item.size();
        self.buffered_events
            .fetch_sub(size.events, Ordering::Relaxed);
        self.buffered_bytes.fetch_sub(size.bytes, Ordering::Relaxed);
        if contents.items.is_empty() {
            contents.items = VecDeque::new();
        }
        let drained = contents.drain_requested && self.is_half_empty();
        contents.drain_requested &= !drained;
        if self.has_headroom() {
            contents.too_slow = false;
            let streams = std::mem::take(&mut contents.streams);
            drop(contents);
            streams.into_iter().for_each(Waker::wake);
        }
        Poll::Ready(TakenItem { item, drained })
    }

    fn buffered(&self) -> BufferSize {
        BufferSize {
            events: self.buffered_events.load(Ordering::Relaxed),
            bytes: self.buffered_bytes.load(Ordering::Relaxed),
        }
    }

    fn is_half_empty(&self) -> bool {
        self.buffered().is_half_empty(self.limit)
    }

    /// Returns whether the buffer is nearly full with `more`: the stream then calls [`Self::wait_for_room`].
    pub(crate) fn is_nearly_full_with(&self, more: BufferSize) -> bool {
        self.buffered().plus(more).is_nearly_full(self.limit)
    }

    fn has_headroom(&self) -> bool {
        self.buffered().has_headroom(self.limit)
    }

    /// If the buffer is nearly full, waits until there is room, or for a limited time after `since`. Does not wait for
    /// a consumer whose last wait timed out and that has not caught up since.
    pub(crate) async fn wait_for_room(&self, since: Instant) {
        if !self.buffered().is_nearly_full(self.limit) {
            return;
        }
        let events = u32::try_from(BufferSize::awaited_events(self.limit)).unwrap_or(u32::MAX);
        let longest = WAIT_PER_EVENT.saturating_mul(events).max(MIN_WAIT);
        let room = timeout_at(since + longest, poll_fn(|cx| self.poll_room(cx))).await;
        if room.is_err() {
            let mut contents = self.lock();
            contents.too_slow = !self.has_headroom();
        }
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut contents = self.lock();
        if contents.too_slow || contents.ended.is_some() || self.has_headroom() {
            return Poll::Ready(());
        }
        if !contents
            .streams
            .iter()
            .any(|stream| stream.will_wake(cx.waker()))
        {
            contents.streams.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
