//! Events of one revision that arrive in several fragments.

use super::{AFTER_EVENTS, TestEvent, at, attached, revisions};

#[test]
fn fragments_are_joined_holding_only_open_revision() {
    let mut cursor = attached(1);
    let first = vec![at(1), at(2), TestEvent(3, 0, 3)];
    assert_eq!(revisions(cursor.events(first, true)), [1, 2]);
    assert_eq!((cursor.held(), cursor.next_revision()), (1, 3));
    assert_eq!(
        revisions(cursor.events(vec![TestEvent(3, 1, 3)], true)),
        Vec::<i64>::new()
    );
    assert_eq!(
        revisions(cursor.events(Vec::new(), true)),
        Vec::<i64>::new()
    );
    let delivered = cursor
        .events(vec![TestEvent(3, 2, 3), at(4)], false)
        .expect("complete");
    let joined = [
        TestEvent(3, 0, 3),
        TestEvent(3, 1, 3),
        TestEvent(3, 2, 3),
        at(4),
    ];
    assert_eq!(delivered, joined);
    assert_eq!((cursor.held(), cursor.next_revision()), (0, 5));
}

#[test]
fn empty_last_fragment_completes_held_events() {
    let mut cursor = attached(1);
    assert_eq!(
        revisions(cursor.events(vec![at(3)], true)),
        Vec::<i64>::new()
    );
    assert_eq!(revisions(cursor.events(Vec::new(), false)), [3]);
}

#[test]
fn stream_lost_between_fragments_resumes_at_open_revision() {
    let mut cursor = attached(1);
    assert_eq!(
        revisions(cursor.events(vec![at(2), TestEvent(3, 0, 2)], true)),
        [2]
    );
    cursor.stream_ended();
    assert_eq!((cursor.held(), cursor.next_revision()), (0, 3));
    assert_eq!(
        cursor.events(vec![TestEvent(3, 1, 2)], false),
        None,
        "a late fragment of the old stream"
    );
    cursor.created(100, 1);
    let delivered = cursor
        .events(vec![TestEvent(3, 0, 2), TestEvent(3, 1, 2)], false)
        .expect("complete");
    assert_eq!(delivered, [TestEvent(3, 0, 2), TestEvent(3, 1, 2)]);
}

#[test]
fn progress_between_fragments_is_ignored() {
    let mut cursor = attached(5);
    assert_eq!(cursor.events(vec![at(4)], true), None);
    assert_eq!(cursor.held(), 0);
    assert!(!cursor.progress(20, AFTER_EVENTS));
}
