//! Writes the items of a watch into its buffer.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use super::{BufferItem, BufferSize, Contents, EndCause, EventBuffer};
use crate::{
    error::Error,
    proto::Event,
    watch::{Freshness, Resynced, WatchEnd, WatchEvent, engine::cursor::ProgressOrder},
};

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
