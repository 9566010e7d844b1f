use proptest::prelude::*;

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
fn progress_between_fragments_is_ignored() {
    let mut cursor = attached(5);
    assert_eq!(cursor.events(vec![at(4)], true), None);
    assert_eq!(cursor.held(), 0);
    assert!(!cursor.progress(20, AFTER_EVENTS));
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

/// One stream of a scripted server over the same history.
#[derive(Debug, Clone)]
struct ScriptedStream {
    /// Sizes of the batches, in revisions.
    batches: Vec<usize>,
    /// Sizes of fragments, in events, cut from each batch in turn.
    fragments: Vec<usize>,
    /// The stream ends after this many messages.
    messages: usize,
    /// How many revisions before the requested one the server starts, so that it repeats some.
    rewind: usize,
    /// After which messages the server sends correct progress.
    progress: Vec<bool>,
    /// Whether some messages are sent twice.
    stutter: bool,
}

fn stream() -> impl Strategy<Value = ScriptedStream> {
    (
        prop::collection::vec(1..6_usize, 1..6),
        prop::collection::vec(1..5_usize, 1..6),
        0..12_usize,
        0..4_usize,
        prop::collection::vec(any::<bool>(), 1..6),
        any::<bool>(),
    )
        .prop_map(
            |(batches, fragments, messages, rewind, progress, stutter)| ScriptedStream {
                batches,
                fragments,
                messages,
                rewind,
                progress,
                stutter,
            },
        )
}

fn cycle(sizes: &[usize], turn: usize) -> usize {
    sizes[turn % sizes.len()]
}

/// Plays one stream from `cursor.next_revision()` and appends the delivered events.
fn play(
    cursor: &mut Cursor<TestEvent>,
    history: &[Vec<TestEvent>],
    script: &ScriptedStream,
    delivered: &mut Vec<TestEvent>,
) {
    let current = i64::try_from(history.len()).expect("short");
    cursor.created(current, 1);
    let from = usize::try_from(cursor.next_revision() - 1)
        .expect("positive")
        .saturating_sub(script.rewind);
    let (mut at, mut sent, mut turn) = (from.min(history.len()), 0, 0);
    while at < history.len() {
        let end = (at + cycle(&script.batches, turn)).min(history.len());
        let mut rest: Vec<TestEvent> = history[at..end].concat();
        let stutter = script.stutter && turn % 2 == 0;
        while !rest.is_empty() {
            let tail = rest.split_off(cycle(&script.fragments, sent).min(rest.len()));
            let fragment = !tail.is_empty();
            for _ in 0..=usize::from(stutter && !fragment) {
                let before = cursor.next_revision();
                let complete = cursor.events(rest.clone(), fragment);
                assert!(cursor.next_revision() >= before);
                assert!(cursor.held() <= 4, "more than one revision is held");
                delivered.extend(complete.unwrap_or_default());
            }
            if fragment && script.progress[sent % script.progress.len()] {
                assert!(
                    !cursor.progress(current, AFTER_EVENTS),
                    "overtakes a fragment"
                );
            }
            sent += 1;
            if sent == script.messages {
                cursor.stream_ended();
                return;
            }
            rest = tail;
        }
        at = end;
        if script.progress[turn % script.progress.len()] {
            // Correct progress must not hide the events that follow.
            cursor.progress(i64::try_from(at).expect("short"), AFTER_EVENTS);
        }
        turn += 1;
    }
    cursor.stream_ended();
}

proptest! {
    #[test]
    fn any_streams_add_up_to_the_history(
        sizes in prop::collection::vec(1..5_usize, 1..40),
        start in 1..10_i64,
        streams in prop::collection::vec(stream(), 0..8),
    ) {
        let history: Vec<Vec<TestEvent>> = (1..)
            .zip(&sizes)
            .map(|(revision, &of)| (0..of).map(|n| TestEvent(revision, n, of)).collect())
            .collect();
        let mut cursor = Cursor::new(start, 0);
        let mut delivered = Vec::new();
        for script in &streams {
            play(&mut cursor, &history, script, &mut delivered);
            // The events delivered so far consist of complete revisions.
            prop_assert!(delivered.last().is_none_or(|last| last.1 + 1 == last.2));
        }
        let last = ScriptedStream {
            batches: vec![3],
            fragments: vec![2],
            messages: 0,
            rewind: 0,
            progress: vec![false],
            stutter: false,
        };
        play(&mut cursor, &history, &last, &mut delivered);
        let wanted: Vec<TestEvent> =
            history.concat().into_iter().filter(|event| event.0 >= start).collect();
        prop_assert_eq!(delivered, wanted);
    }

    #[test]
    fn no_server_message_moves_cursor_back(
        start in 0..50_i64,
        messages in prop::collection::vec((0..5_u8, 0..60_i64, 0..60_i64, any::<bool>()), 0..40),
    ) {
        let mut cursor = Cursor::new(start, 0);
        let (mut next, mut last) = (cursor.next_revision(), 0);
        for (kind, a, b, fragment) in messages {
            match kind {
                0 => { cursor.created(a, 1); }
                1 => cursor.stream_ended(),
                2 => {
                    let orders = [ProgressOrder::Unknown, AFTER_EVENTS];
                    cursor.progress(a, orders[usize::from(fragment)]);
                }
                3 => cursor.resynced(a),
                _ => if let Some(events) = cursor.events(vec![at(a), at(b)], fragment) {
                    for (revision, _) in by_revision(&events) {
                        prop_assert!(revision > last && revision >= start);
                        last = revision;
                    }
                }
            }
            prop_assert!(cursor.next_revision() >= next);
            next = cursor.next_revision();
            prop_assert!(last < next.max(1));
        }
    }
}
