//! Which events are delivered, and in which order.

use super::{at, attached, by_revision, revisions};

#[test]
fn clean_batch_is_moved_not_copied() {
    let mut cursor = attached(1);
    let events = vec![at(1), at(2), at(2), at(3)];
    let pointer = events.as_ptr();
    let delivered = cursor.events(events, false).expect("delivered");
    assert_eq!(delivered.as_ptr(), pointer);
}

#[test]
fn batch_keeps_events_of_each_revision_together() {
    let mut cursor = attached(1);
    let delivered = cursor.events(vec![at(1), at(2), at(2), at(5)], false);
    let delivered = delivered.expect("delivered");
    let expected = [(1, vec![at(1)]), (2, vec![at(2), at(2)]), (5, vec![at(5)])];
    assert!(
        by_revision(&delivered).eq(expected
            .iter()
            .map(|(revision, events)| (*revision, &events[..])))
    );
}

#[test]
fn repeats_are_dropped_even_of_last_revision() {
    let mut cursor = attached(1);
    assert_eq!(revisions(cursor.events(vec![at(3), at(4)], false)), [3, 4]);
    assert_eq!(
        revisions(cursor.events(vec![at(4)], false)),
        Vec::<i64>::new()
    );
    assert_eq!(
        revisions(cursor.events(vec![at(3), at(4), at(6)], false)),
        [6]
    );
    assert_eq!(cursor.next_revision(), 7);
}

#[test]
fn disordered_batch_is_delivered_in_order() {
    let mut cursor = attached(1);
    assert_eq!(
        revisions(cursor.events(vec![at(5), at(3), at(4)], false)),
        [3, 4, 5]
    );
}

#[test]
fn event_without_revision_is_dropped() {
    let mut cursor = attached(0);
    assert_eq!(
        revisions(cursor.events(vec![at(0), at(-3)], false)),
        Vec::<i64>::new()
    );
    assert_eq!(cursor.next_revision(), 101);
}
