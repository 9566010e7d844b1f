mod any_streams;
mod events;
mod fragments;
mod progress;
mod stream_starts;

use super::{Cursor, ProgressOrder, Revisioned, StreamPosition};

const AFTER_EVENTS: ProgressOrder = ProgressOrder::AfterEvents;

/// An event: its revision, its index within the revision, and the number of events of the revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TestEvent(i64, usize, usize);

impl Revisioned for TestEvent {
    fn mod_revision(&self) -> i64 {
        self.0
    }
}

fn at(revision: i64) -> TestEvent {
    TestEvent(revision, 0, 1)
}

fn attached(start: i64) -> Cursor<TestEvent> {
    let mut cursor = Cursor::new(start, 0);
    assert_eq!(cursor.created(100, 1), StreamPosition::Continues);
    cursor
}

/// Splits events into the events of each revision.
fn by_revision(events: &[TestEvent]) -> impl Iterator<Item = (i64, &[TestEvent])> {
    events
        .chunk_by(|a, b| a.mod_revision() == b.mod_revision())
        .map(|events| (events[0].mod_revision(), events))
}

fn revisions(delivered: Option<Vec<TestEvent>>) -> Vec<i64> {
    delivered.map_or_else(Vec::new, |events| {
        by_revision(&events).map(|(revision, _)| revision).collect()
    })
}
