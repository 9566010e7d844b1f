//! Collects responses that the stream's actor receives as one message, and joins small ones.

use std::{collections::HashSet, ops::Range};

use bytes::Bytes;

use super::{event_decoder, messages::ResponsesReceived};
use crate::proto::{Event, WatchResponse};

/// Most responses in one batch.
const MAX_RESPONSES: usize = 64;
/// Most events in one batch: a buffer of the default size has room for as many when its stream starts to wait for it,
/// and the allocator reuses lists of this size.
const MAX_EVENTS: usize = 256;
/// Bytes after which a batch is full, so that few large responses wait for the actor.
const MAX_BYTES: usize = 1 << 20;

/// Received responses, in order.
#[derive(Default)]
pub(super) struct ResponseBatch {
    pub(super) responses: Vec<WatchResponse>,
    events: usize,
    /// Length of the encoded responses.
    bytes: usize,
    /// Capacity for the events of the next decoded response: the number of events in the last one.
    capacity: usize,
    /// Newest revision of the last response.
    newest: i64,
    /// Watches whose last response was a fragment that is not the last one.
    in_fragments: HashSet<i64>,
}

impl ResponseBatch {
    /// Returns the batch to collect next, and the responses collected so far in `self` with their encoded length.
    pub(super) fn finish(self) -> (ResponsesReceived, Self) {
        let last = self.responses.last().map_or(0, |last| last.events.len());
        let next = Self {
            capacity: last.min(MAX_EVENTS),
            in_fragments: self.in_fragments,
            ..Self::default()
        };
        let received = ResponsesReceived {
            responses: self.responses,
            bytes: self.bytes,
        };
        (received, next)
    }

    pub(super) fn is_full(&self) -> bool {
        self.responses.len() >= MAX_RESPONSES
            || self.events >= MAX_EVENTS
            || self.bytes >= MAX_BYTES
    }

    /// Decodes and adds a response that contains only events; returns `false` if it contains anything else.
    pub(super) fn add_events(&mut self, message: &Bytes) -> bool {
        let capacity = std::mem::take(&mut self.capacity);
        match event_decoder::decode_events(message, capacity) {
            Some(response) => {
                self.add(response, message.len());
                true
            }
            None => false,
        }
    }

    /// Appends the events of the response at `message` in `frame` to the last response, and returns `true`, if both
    /// contain only events of the same watch. A busy watch receives many small responses, and each separate one costs
    /// a message to its actor.
    ///
    /// The header of the appended response is dropped; the cursor does not use it. A response that repeats a revision
    /// stays separate: the cursor drops repeats of earlier responses, but takes repeats within a response for further
    /// events of that revision.
    pub(super) fn join(&mut self, frame: &Bytes, message: Range<usize>) -> bool {
        let Some(last) = self.responses.last_mut().filter(|last| only_events(last)) else {
            return false;
        };
        let before = last.events.len();
        let length = message.len();
        if !event_decoder::append_events(frame, message, last.watch_id, &mut last.events) {
            return false;
        }
        let added = last.events[before..].iter().map(Event::revision);
        let (oldest, newest) = added.fold((i64::MAX, self.newest), |(oldest, newest), revision| {
            (oldest.min(revision), newest.max(revision))
        });
        if oldest <= self.newest {
            last.events.truncate(before);
            return false;
        }
        self.newest = newest;
        self.events += last.events.len() - before;
        self.bytes += length;
        true
    }

    /// Adds a response whose encoded length is `length`.
    pub(super) fn add(&mut self, response: WatchResponse, length: usize) {
        self.bytes += length;
        self.events += response.events.len();
        self.newest = response
            .events
            .iter()
            .map(Event::revision)
            .fold(0, i64::max);
        if response.fragment {
            self.in_fragments.insert(response.watch_id);
        } else if self.in_fragments.remove(&response.watch_id) {
            // The last fragment continues earlier ones, whose events may be newer: nothing is joined to it.
            self.newest = i64::MAX;
        }
        self.responses.push(response);
    }
}

fn only_events(response: &WatchResponse) -> bool {
    !response.created
        && !response.canceled
        && !response.fragment
        && response.compact_revision == 0
        && !response.events.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::{proto::KeyValue, watch::engine::cursor::Cursor};

    fn event(mod_revision: i64) -> Event {
        Event {
            kv: Some(KeyValue {
                mod_revision,
                ..KeyValue::default()
            }),
            ..Event::default()
        }
    }

    fn at(watch_id: i64, revisions: impl IntoIterator<Item = i64>) -> WatchResponse {
        WatchResponse {
            watch_id,
            events: revisions.into_iter().map(event).collect(),
            ..WatchResponse::default()
        }
    }

    fn receive(batch: &mut ResponseBatch, response: WatchResponse) {
        let message = Bytes::from(response.encode_to_vec());
        if !batch.join(&message, 0..message.len()) {
            batch.add(response, message.len());
        }
    }

    #[test]
    fn only_consecutive_events_of_one_watch_are_joined() {
        let fragment = WatchResponse {
            fragment: true,
            ..at(1, [7])
        };
        let canceled = WatchResponse {
            canceled: true,
            ..at(2, [])
        };
        let mut batch = ResponseBatch::default();
        let responses = [
            at(1, [1, 2]),
            at(1, [3, 4, 5]),
            at(2, [1]),
            at(1, [6]),
            fragment,
            at(1, [8]),
            at(1, []),
            at(1, [9]),
            at(2, [2]),
            canceled,
        ];
        for response in responses {
            receive(&mut batch, response);
        }
        let received = batch.responses.iter();
        let received: Vec<_> = received.map(|r| (r.watch_id, r.events.len())).collect();
        let separate = [(1, 1), (1, 1), (1, 1), (1, 0), (1, 1), (2, 1), (2, 0)];
        assert_eq!(received, [&[(1, 5), (2, 1)][..], &separate[..]].concat());
        assert_eq!(batch.events, 11);
    }

    #[test]
    fn batch_is_full_by_responses_or_events() {
        let mut batch = ResponseBatch::default();
        for n in 0..MAX_EVENTS {
            assert!(!batch.is_full(), "after {n}");
            receive(&mut batch, at(1, [1 + i64::try_from(n).unwrap()]));
        }
        assert!(batch.is_full());
        assert_eq!(batch.responses.len(), 1);
    }

    #[test]
    fn batch_is_full_by_bytes() {
        let mut batch = ResponseBatch::default();
        let mut large = at(1, [1]);
        large.events[0].kv.get_or_insert_default().value = vec![0; MAX_BYTES].into();
        receive(&mut batch, large);
        assert!(batch.is_full());
        let (received, next) = batch.finish();
        assert!(received.bytes > MAX_BYTES && !next.is_full());
    }

    #[test]
    fn response_repeating_a_revision_stays_separate() {
        let mut batch = ResponseBatch::default();
        for response in [at(1, [5, 6]), at(1, [6, 7]), at(1, [9, 8]), at(1, [9])] {
            receive(&mut batch, response);
        }
        let sizes = batch.responses.iter().map(|r| r.events.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [2, 4, 1]);
    }

    /// Returns the revisions that the cursors of all watches deliver from these responses.
    fn delivered(responses: Vec<WatchResponse>) -> BTreeMap<i64, Vec<i64>> {
        let mut cursors = BTreeMap::<i64, (Cursor<Event>, Vec<i64>)>::new();
        for response in responses {
            let (cursor, revisions) = cursors.entry(response.watch_id).or_insert_with(|| {
                let mut cursor = Cursor::new(1, 0);
                cursor.created(0, 1);
                (cursor, Vec::new())
            });
            let events = cursor.events(response.events, response.fragment);
            revisions.extend(events.iter().flatten().map(Event::revision));
        }
        cursors
            .into_iter()
            .map(|(watch, (_, revisions))| (watch, revisions))
            .collect()
    }

    proptest! {
        #[test]
        fn joined_responses_deliver_the_same_events(
            responses in prop::collection::vec(
                (1..3_i64, prop::collection::vec(0..12_i64, 0..4), 0..8_u8),
                0..20,
            ),
        ) {
            let responses = responses.into_iter().map(|(watch, revisions, fragment)| WatchResponse {
                fragment: fragment == 0,
                ..at(watch, revisions)
            });
            let responses: Vec<_> = responses.collect();
            let mut batch = ResponseBatch::default();
            for response in &responses {
                receive(&mut batch, response.clone());
            }
            prop_assert_eq!(delivered(batch.responses), delivered(responses));
        }
    }
}
