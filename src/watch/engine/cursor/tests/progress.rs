//! Progress notifications, in order or not.

use super::{AFTER_EVENTS, Cursor, ProgressOrder, TestEvent, at, attached, revisions};

#[test]
fn progress_advances_cursor_but_never_overtakes() {
    let mut cursor = attached(5);
    assert!(!cursor.progress(3, AFTER_EVENTS), "behind the start");
    assert!(cursor.progress(9, AFTER_EVENTS));
    assert!(
        cursor.progress(9, AFTER_EVENTS),
        "repeated progress is trusted"
    );
    assert!(!cursor.progress(8, AFTER_EVENTS));
    assert_eq!(cursor.events(vec![at(12)], true), None);
    assert!(
        !cursor.progress(20, AFTER_EVENTS),
        "a revision is being joined"
    );
    assert_eq!(revisions(cursor.events(vec![at(12)], false)), [12]);
    assert!(cursor.progress(20, AFTER_EVENTS));
    assert_eq!(cursor.next_revision(), 21);
}

#[test]
fn progress_that_overtakes_events_hides_none() {
    for order in [ProgressOrder::Unknown, ProgressOrder::AfterEvents] {
        let mut cursor = attached(5);
        assert_eq!(revisions(cursor.events(vec![at(6)], false)), [6]);
        assert!(cursor.progress(20, order));
        let late = vec![at(6), at(7), at(20), at(21)];
        assert_eq!(revisions(cursor.events(late, false)), [7, 20, 21]);
    }
}

#[test]
fn progress_of_unknown_order_does_not_move_resume() {
    let mut cursor = attached(5);
    assert!(cursor.progress(20, ProgressOrder::Unknown));
    assert_eq!(cursor.next_revision(), 5);
    assert!(cursor.progress(20, ProgressOrder::AfterEvents));
    assert_eq!(cursor.next_revision(), 21);
}

#[test]
fn progress_before_created_is_ignored() {
    let mut cursor = Cursor::<TestEvent>::new(5, 0);
    assert!(!cursor.progress(50, AFTER_EVENTS));
    cursor.created(50, 1);
    cursor.stream_ended();
    assert!(!cursor.progress(50, AFTER_EVENTS));
    assert_eq!(cursor.next_revision(), 5);
}
