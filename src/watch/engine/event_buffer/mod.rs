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

use crate::{
    error::Error,
    proto::Event,
    watch::{Freshness, Resynced, WatchEnd, WatchEvent, engine::cursor::ProgressOrder},
};

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

/// The watch's end of its buffer. Dropping it without [`Self::end`] ends the watch with [`WatchEnd::Shutdown`].
#[derive(Debug)]
pub(crate) struct BufferWriter {
    buffer: Arc<EventBuffer>,
    ends_watch: bool,
}

impl BufferWriter {
    pub(crate) fn new(buffer: Arc<EventBuffer>) -> Self {
        Self {
            buffer,
            ends_watch: true,
        }
    }

    /// Creates the writer of the second leg of a hedged watch, which writes no items and does not end the watch when
    /// dropped.
    pub(crate) fn of_second_leg(buffer: Arc<EventBuffer>) -> Self {
        Self {
            buffer,
            ends_watch: false,
        }
    }

    pub(crate) fn buffer(&self) -> Arc<EventBuffer> {
        self.buffer.clone()
    }

    /// Returns whether there is no room for another batch.
    pub(crate) fn is_full(&self) -> bool {
        self.buffer.buffered().is_full(self.buffer.limit)
    }

    pub(crate) fn batch(&self, mut events: Vec<Event>) {
        // Thousands of lists may be buffered, so none keeps much unused capacity.
        if events.capacity() / 2 >= events.len() {
            events.shrink_to_fit();
        }
        let BufferSize { bytes, .. } = BufferSize::of_events(&events);
        self.push_counted(BufferItem::Batch { events, bytes });
    }

    /// Replaces unread progress: only the newest is of interest.
    pub(crate) fn progress(&self, revision: i64, order: ProgressOrder) {
        let progress = match order {
            ProgressOrder::AfterEvents => BufferItem::Single(WatchEvent::Progress(revision)),
            ProgressOrder::Unknown => BufferItem::UnconfirmedProgress(revision),
        };
        self.push_item(progress, |older| {
            matches!(
                older,
                BufferItem::Single(WatchEvent::Progress(_)) | BufferItem::UnconfirmedProgress(_)
            )
        });
    }

    /// Replaces an unread [`WatchEvent::Resumed`] as well, which no longer holds.
    pub(crate) fn disconnected(&self, error: Arc<Error>) {
        self.push_status(WatchEvent::Disconnected(error), |older| {
            matches!(older, WatchEvent::Disconnected(_) | WatchEvent::Resumed)
        });
    }

    pub(crate) fn resumed(&self) {
        self.push_status(WatchEvent::Resumed, |older| {
            matches!(older, WatchEvent::Resumed)
        });
    }

    pub(crate) fn paused(&self) {
        self.push_status(WatchEvent::Paused, |older| {
            matches!(older, WatchEvent::Paused | WatchEvent::Resumed)
        });
    }

    /// Replaces an unread report.
    pub(crate) fn freshness(&self, freshness: Freshness) {
        self.push_status(WatchEvent::Freshness(Box::new(freshness)), |older| {
            matches!(older, WatchEvent::Freshness(_))
        });
    }

    pub(crate) fn revision_regressed(&self, seen: i64, current: i64) {
        self.push_status(WatchEvent::RevisionRegressed { seen, current }, |older| {
            matches!(older, WatchEvent::RevisionRegressed { .. })
        });
    }

    pub(crate) fn resynced(&self, resynced: Resynced) {
        self.push_counted(BufferItem::Single(WatchEvent::Resynced(Box::new(resynced))));
    }

    fn push_counted(&self, item: BufferItem) {
        self.change(|contents| {
            let (size, buffer) = (item.size(), &self.buffer);
            let events = &buffer.buffered_events;
            events.fetch_add(size.events, Ordering::Relaxed);
            buffer
                .buffered_bytes
                .fetch_add(size.bytes, Ordering::Relaxed);
            contents.items.push_back(item);
        });
    }

    fn push_status(&self, event: WatchEvent, outdated: impl Fn(&WatchEvent) -> bool) {
        self.push_item(
            BufferItem::Single(event),
            |older| matches!(older, BufferItem::Single(older) if outdated(older)),
        );
    }

    /// Adds an item that does not count, and removes those after the last counted item that it makes `outdated`. So
    /// the buffer stays small however often a watch is interrupted while the consumer does not read.
    fn push_item(&self, item: BufferItem, outdated: impl Fn(&BufferItem) -> bool) {
        self.change(|contents| {
            let last_counted = contents
                .items
                .iter()
                .rposition(|item| item.size().events > 0);
            let first = last_counted.map_or(0, |index| index + 1);
            for index in (first..contents.items.len()).rev() {
                if outdated(&contents.items[index]) {
                    contents.items.remove(index);
                }
            }
            contents.items.push_back(item);
        });
    }

    /// Adds the last item. Later items are dropped, and the stream does not wait for this buffer any more.
    pub(crate) fn end(&self, end: WatchEnd) {
        if !self.ends_watch {
            return;
        }
        let mut streams = Vec::new();
        let cause = match end {
            WatchEnd::Shutdown => EndCause::ClientShutdown,
            _ => EndCause::Watch,
        };
        self.change(|contents| {
            contents
                .items
                .push_back(BufferItem::Single(WatchEvent::Ended(end)));
            contents.ended = Some(cause);
            streams = std::mem::take(&mut contents.streams);
        });
        streams.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn set_delivered(&self, revision: i64) {
        self.buffer.set_delivered(revision);
    }

    /// Requests [`TakenItem::drained`] for when half of the buffer is read. Returns `false` if it is read already.
    pub(crate) fn request_drain(&self) -> bool {
        let mut contents = self.buffer.lock();
        contents.drain_requested = !self.buffer.is_half_empty();
        contents.drain_requested
    }

    fn change(&self, change: impl FnOnce(&mut Contents)) {
        let consumer = {
            let mut contents = self.buffer.lock();
            if contents.ended.is_some() {
                return;
            }
            change(&mut contents);
            contents.consumer.take()
        };
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }
}

impl Drop for BufferWriter {
    fn drop(&mut self) {
        self.end(WatchEnd::Shutdown);
    }
}

#[cfg(test)]
mod tests;
