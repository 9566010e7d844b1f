//! The size of buffered items, and the thresholds that depend on the limit of a buffer.

use crate::{
    proto::{Event, KeyValue},
    watch::Resynced,
};

/// Most that a buffer keeps free, and that the consumer reads while the stream waits.
const MAX_HEADROOM: BufferSize = BufferSize {
    events: 2048,
    bytes: 4 << 20,
};

/// A number of events, and the bytes of their keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BufferSize {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

impl BufferSize {
    pub(super) fn of_events(events: &[Event]) -> Self {
        let size_of = |event: &Event| {
            let kv = event.kv.as_ref().map_or(0, size_of_pair);
            kv + event.prev_kv.as_deref().map_or(0, size_of_pair)
        };
        Self {
            events: events.len(),
            bytes: events.iter().map(size_of).sum(),
        }
    }

    /// Counts each changed key as an event, and the resync itself as at least one.
    pub(super) fn of_resync(resynced: &Resynced) -> Self {
        let written = resynced.created.iter().chain(&resynced.changed);
        let deleted = resynced.deleted.iter().map(bytes::Bytes::len);
        let changes = resynced.created.len() + resynced.changed.len() + resynced.deleted.len();
        Self {
            events: changes.max(1),
            bytes: written.map(size_of_pair).chain(deleted).sum(),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_add(other.events),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns whether there is no room for another item.
    pub(super) fn is_full(self, limit: Self) -> bool {
        self.events >= limit.events || self.bytes >= limit.bytes
    }

    /// Returns whether a full buffer was read far enough to continue.
    pub(super) fn is_half_empty(self, limit: Self) -> bool {
        self.fits(limit.map(|limit| limit / 2))
    }

    /// Returns whether the stream should wait for the consumer.
    pub(super) fn is_nearly_full(self, limit: Self) -> bool {
        !self.fits(limit.minus_headroom(1, |limit| limit / 4 * 3))
    }

    /// Returns whether the stream need not wait any more.
    pub(super) fn has_headroom(self, limit: Self) -> bool {
        self.fits(limit.minus_headroom(2, |limit| limit / 2))
    }

    /// Returns how many events the consumer has to read while the stream waits.
    pub(super) fn awaited_events(limit: Self) -> usize {
        (limit.events / 4).min(MAX_HEADROOM.events)
    }

    fn fits(self, limit: Self) -> bool {
        self.events <= limit.events && self.bytes <= limit.bytes
    }

    fn map(self, change: impl Fn(usize) -> usize) -> Self {
        Self {
            events: change(self.events),
            bytes: change(self.bytes),
        }
    }

    /// Returns the part of a small limit, or a large limit without this many times the headroom.
    fn minus_headroom(self, times: usize, part: impl Fn(usize) -> usize) -> Self {
        let without =
            |limit: usize, headroom: usize| part(limit).max(limit.saturating_sub(times * headroom));
        Self {
            events: without(self.events, MAX_HEADROOM.events),
            bytes: without(self.bytes, MAX_HEADROOM.bytes),
        }
    }
}

fn size_of_pair(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: BufferSize = BufferSize {
        events: 100,
        bytes: 1000,
    };

    fn size(events: usize, bytes: usize) -> BufferSize {
        BufferSize { events, bytes }
    }

    #[test]
    fn either_events_or_bytes_fill_a_buffer() {
        for (events, bytes) in [(100, 0), (0, 1000)] {
            let full = size(events, bytes);
            assert!(full.is_full(LIMIT) && full.is_nearly_full(LIMIT));
            assert!(!full.is_half_empty(LIMIT) && !full.has_headroom(LIMIT));
        }
        assert!(!size(99, 999).is_full(LIMIT));
        for (events, bytes, nearly_full) in [(75, 750, false), (76, 0, true), (0, 751, true)] {
            assert_eq!(size(events, bytes).is_nearly_full(LIMIT), nearly_full);
        }
        for (events, bytes, half_empty) in [(50, 500, true), (51, 0, false), (0, 501, false)] {
            assert_eq!(size(events, bytes).is_half_empty(LIMIT), half_empty);
            assert_eq!(size(events, bytes).has_headroom(LIMIT), half_empty);
        }
    }

    #[test]
    fn large_buffers_keep_a_fixed_headroom() {
        let limit = size(1 << 20, 1 << 30);
        let nearly_full = size(limit.events - 2048, limit.bytes - (4 << 20));
        assert!(!nearly_full.is_nearly_full(limit));
        assert!(nearly_full.plus(size(1, 0)).is_nearly_full(limit));
        assert!(nearly_full.plus(size(0, 1)).is_nearly_full(limit));
    }

    #[test]
    fn size_includes_previous_values() {
        let pair = |key: &'static str, value: &'static str| KeyValue {
            key: key.into(),
            value: value.into(),
            ..KeyValue::default()
        };
        let event = Event {
            kv: Some(pair("key", "value")),
            prev_kv: Some(Box::new(pair("key", "old"))),
            ..Event::default()
        };
        assert_eq!(BufferSize::of_events(&[event.clone(), event]), size(2, 28));
    }
}
