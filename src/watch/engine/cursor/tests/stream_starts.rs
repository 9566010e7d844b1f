//! Where the next stream resumes, and what its first response shows.

use super::{Cursor, StreamPosition, TestEvent, at, attached, revisions};

#[test]
fn watch_from_now_keeps_its_first_start() {
    let mut cursor = Cursor::<TestEvent>::new(0, 0);
    assert_eq!(cursor.next_revision(), 0);
    cursor.stream_ended();
    assert_eq!(
        cursor.next_revision(),
        0,
        "never created: still from now on"
    );
    cursor.created(41, 1);
    assert_eq!(cursor.next_revision(), 42);
    cursor.stream_ended();
    cursor.created(90, 1);
    assert_eq!(cursor.next_revision(), 42, "a resume keeps the first start");
    assert_eq!(revisions(cursor.events(vec![at(41), at(42)], false)), [42]);
}

#[test]
fn created_keeps_given_start_revision() {
    let cursor = attached(5);
    assert_eq!(cursor.next_revision(), 5);
}

#[test]
fn header_of_a_proxy_is_no_position() {
    let mut cursor = attached(5);
    cursor.stream_ended();
    assert_eq!(cursor.created(1000, 0), StreamPosition::Continues);
    cursor.stream_ended();
    assert_eq!(
        cursor.created(100, 1),
        StreamPosition::Continues,
        "the watch has not seen revision 1000"
    );
}

#[test]
fn lagging_member_is_reported_and_used() {
    let mut cursor = attached(1);
    assert_eq!(revisions(cursor.events(vec![at(150)], false)), [150]);
    cursor.stream_ended();
    assert_eq!(
        cursor.created(149, 1),
        StreamPosition::RevisionRegressed {
            seen: 150,
            current: 149
        }
    );
    assert_eq!(revisions(cursor.events(vec![at(151)], false)), [151]);
}

#[test]
fn watch_of_future_revision_is_no_regression() {
    let mut cursor = Cursor::<TestEvent>::new(1000, 0);
    assert_eq!(cursor.created(10, 1), StreamPosition::Continues);
}

#[test]
fn other_cluster_is_reported_and_ignored() {
    let mut cursor = attached(1);
    cursor.stream_ended();
    assert_eq!(
        cursor.created(100, 2),
        StreamPosition::ClusterChanged {
            previous: 1,
            current: 2
        }
    );
    assert!(!cursor.is_attached());
    assert_eq!(cursor.events(vec![at(101)], false), None);
    assert_eq!(
        cursor.created(100, 0),
        StreamPosition::Continues,
        "a header without an id is ignored"
    );
}

#[test]
fn resync_moves_cursor_forward_only() {
    let mut cursor = attached(5);
    cursor.resynced(60);
    assert_eq!(cursor.next_revision(), 61);
    cursor.resynced(30);
    assert_eq!(cursor.next_revision(), 61);
}
