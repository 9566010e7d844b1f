use proptest::prelude::*;

use super::{Attached, Batch, Cursor, Revisioned};

/// Event `1` of `2` at revision `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event(i64, usize, usize);

impl Revisioned for Event {
    fn mod_revision(&self) -> i64 {
        self.0
    }
}

fn at(revision: i64) -> Event {
    Event(revision, 0, 1)
}

fn attached(start: i64) -> Cursor<Event> {
    let mut cursor = Cursor::new(start);
    assert_eq!(cursor.created(100, 1), Attached::InStep);
    cursor
}

fn revisions(batch: Option<Batch<Event>>) -> Vec<i64> {
    batch.map_or_else(Vec::new, |batch| {
        batch.revisions().map(|(revision, _)| revision).collect()
    })
}

#[test]
fn watch_from_now_starts_after_the_first_created_header_and_stays_there() {
    let mut cursor = Cursor::<Event>::new(0);
    assert_eq!(cursor.next_revision(), 0);
    cursor.broken();
    assert_eq!(
        cursor.next_revision(),
        0,
        "never created: still from now on"
    );
    cursor.created(41, 1);
    assert_eq!(cursor.next_revision(), 42);
    cursor.broken();
    cursor.created(90, 1);
    assert_eq!(cursor.next_revision(), 42, "a resume keeps the first now");
    assert_eq!(revisions(cursor.events(vec![at(41), at(42)], false)), [42]);
}

#[test]
fn created_does_not_move_a_watch_with_a_start_revision() {
    let cursor = attached(5);
    assert_eq!(cursor.next_revision(), 5);
}

#[test]
fn clean_batch_passes_through_by_move() {
    let mut cursor = attached(1);
    let events = vec![at(1), at(2), at(2), at(3)];
    let pointer = events.as_ptr();
    let batch = cursor.events(events, false).expect("delivered");
    let delivered = batch.into_events();
    assert_eq!(delivered.as_ptr(), pointer);
}

#[test]
fn batch_is_split_by_revision() {
    let batch = Batch {
        events: vec![at(1), at(2), at(2), at(5)],
    };
    let by_value = [(1, vec![at(1)]), (2, vec![at(2), at(2)]), (5, vec![at(5)])];
    assert!(
        batch.revisions().eq(by_value
            .iter()
            .map(|(revision, events)| (*revision, &events[..])))
    );
}

#[test]
fn repeats_are_dropped_even_of_the_last_revision() {
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
fn event_without_a_revision_is_dropped() {
    let mut cursor = attached(0);
    assert_eq!(
        revisions(cursor.events(vec![at(0), at(-3)], false)),
        Vec::<i64>::new()
    );
    assert_eq!(cursor.next_revision(), 101);
}

#[test]
fn fragments_are_joined_and_only_the_open_revision_is_held() {
    let mut cursor = attached(1);
    let first = vec![at(1), at(2), Event(3, 0, 3)];
    assert_eq!(revisions(cursor.events(first, true)), [1, 2]);
    assert_eq!((cursor.held(), cursor.next_revision()), (1, 3));
    assert_eq!(
        revisions(cursor.events(vec![Event(3, 1, 3)], true)),
        Vec::<i64>::new()
    );
    assert_eq!(
        revisions(cursor.events(Vec::new(), true)),
        Vec::<i64>::new()
    );
    let batch = cursor
        .events(vec![Event(3, 2, 3), at(4)], false)
        .expect("complete");
    let joined = [Event(3, 0, 3), Event(3, 1, 3), Event(3, 2, 3), at(4)];
    assert_eq!(batch.events(), joined);
    assert_eq!((cursor.held(), cursor.next_revision()), (0, 5));
}

#[test]
fn last_fragment_without_events_still_completes_what_is_held() {
    let mut cursor = attached(1);
    assert_eq!(
        revisions(cursor.events(vec![at(3)], true)),
        Vec::<i64>::new()
    );
    assert_eq!(revisions(cursor.events(Vec::new(), false)), [3]);
}

#[test]
fn stream_that_ends_between_fragments_resumes_at_the_open_revision() {
    let mut cursor = attached(1);
    assert_eq!(
        revisions(cursor.events(vec![at(2), Event(3, 0, 2)], true)),
        [2]
    );
    cursor.broken();
    assert_eq!((cursor.held(), cursor.next_revision()), (0, 3));
    assert_eq!(
        cursor.events(vec![Event(3, 1, 2)], false),
        None,
        "a late tail of the old stream"
    );
    cursor.created(100, 1);
    let batch = cursor
        .events(vec![Event(3, 0, 2), Event(3, 1, 2)], false)
        .expect("whole");
    assert_eq!(batch.into_events(), [Event(3, 0, 2), Event(3, 1, 2)]);
}

#[test]
fn progress_moves_the_cursor_but_never_overtakes() {
    let mut cursor = attached(5);
    assert_eq!(cursor.progress(3), None, "behind the start");
    assert_eq!(cursor.progress(9), Some(9));
    assert_eq!(cursor.progress(9), Some(9), "an answer, if not news");
    assert_eq!(cursor.progress(8), None);
    assert_eq!(cursor.events(vec![at(12)], true), None);
    assert_eq!(cursor.progress(20), None, "a revision is being joined");
    assert_eq!(revisions(cursor.events(vec![at(12)], false)), [12]);
    assert_eq!(cursor.progress(20), Some(20));
    assert_eq!(cursor.next_revision(), 21);
}

#[test]
fn progress_waits_between_fragments_even_if_nothing_is_held() {
    let mut cursor = attached(5);
    assert_eq!(cursor.events(vec![at(4)], true), None);
    assert_eq!(cursor.held(), 0);
    assert_eq!(cursor.progress(20), None);
}

#[test]
fn progress_before_created_is_for_the_others_on_the_stream() {
    let mut cursor = Cursor::<Event>::new(5);
    assert_eq!(cursor.progress(50), None);
    cursor.created(50, 1);
    cursor.broken();
    assert_eq!(cursor.progress(50), None);
    assert_eq!(cursor.next_revision(), 5);
}

#[test]
fn member_that_is_behind_is_reported_and_still_listened_to() {
    let mut cursor = attached(1);
    assert_eq!(revisions(cursor.events(vec![at(150)], false)), [150]);
    cursor.broken();
    assert_eq!(
        cursor.created(149, 1),
        Attached::RevisionRegressed {
            seen: 150,
            told: 149
        }
    );
    assert_eq!(revisions(cursor.events(vec![at(151)], false)), [151]);
}

#[test]
fn watch_of_the_future_is_no_regression() {
    let mut cursor = Cursor::<Event>::new(1000);
    assert_eq!(cursor.created(10, 1), Attached::InStep);
}

#[test]
fn other_cluster_is_reported_and_not_listened_to() {
    let mut cursor = attached(1);
    cursor.broken();
    assert_eq!(
        cursor.created(100, 2),
        Attached::ClusterChanged { was: 1, is: 2 }
    );
    assert!(!cursor.is_attached());
    assert_eq!(cursor.events(vec![at(101)], false), None);
    assert_eq!(
        cursor.created(100, 0),
        Attached::InStep,
        "a header without an id says nothing"
    );
}

#[test]
fn resync_moves_the_cursor_forward_only() {
    let mut cursor = attached(5);
    cursor.resynced(60);
    assert_eq!(cursor.next_revision(), 61);
    cursor.resynced(30);
    assert_eq!(cursor.next_revision(), 61);
}

/// One stream of a scripted server over the same history.
#[derive(Debug, Clone)]
struct Stream {
    /// Sizes of the batches, in revisions.
    batches: Vec<usize>,
    /// Sizes of fragments, in events, cut from each batch in turn.
    fragments: Vec<usize>,
    /// The stream ends after this many messages.
    messages: usize,
    /// How far before the asked revision the server starts: repeats.
    rewind: usize,
    /// After which messages the server tells progress, rightly.
    progress: Vec<bool>,
    /// How many times each message is sent.
    stutter: bool,
}

fn stream() -> impl Strategy<Value = Stream> {
    (
        prop::collection::vec(1..6_usize, 1..6),
        prop::collection::vec(1..5_usize, 1..6),
        0..12_usize,
        0..4_usize,
        prop::collection::vec(any::<bool>(), 1..6),
        any::<bool>(),
    )
        .prop_map(
            |(batches, fragments, messages, rewind, progress, stutter)| Stream {
                batches,
                fragments,
                messages,
                rewind,
                progress,
                stutter,
            },
        )
}

fn take(sizes: &[usize], turn: usize) -> usize {
    sizes[turn % sizes.len()]
}

/// Plays one stream from `cursor.next_revision()` and appends what is delivered.
fn play(cursor: &mut Cursor<Event>, history: &[Vec<Event>], script: &Stream, got: &mut Vec<Event>) {
    let current = i64::try_from(history.len()).expect("short");
    cursor.created(current, 1);
    let from = usize::try_from(cursor.next_revision() - 1)
        .expect("positive")
        .saturating_sub(script.rewind);
    let (mut at, mut sent, mut turn) = (from.min(history.len()), 0, 0);
    while at < history.len() {
        let end = (at + take(&script.batches, turn)).min(history.len());
        let mut rest: Vec<Event> = history[at..end].concat();
        let stutter = script.stutter && turn % 2 == 0;
        while !rest.is_empty() {
            let tail = rest.split_off(take(&script.fragments, sent).min(rest.len()));
            let fragment = !tail.is_empty();
            for _ in 0..=usize::from(stutter && !fragment) {
                let before = cursor.next_revision();
                let batch = cursor.events(rest.clone(), fragment);
                assert!(cursor.next_revision() >= before);
                assert!(cursor.held() <= 4, "more than one revision is held");
                got.extend(batch.map_or_else(Vec::new, Batch::into_events));
            }
            if fragment && script.progress[sent % script.progress.len()] {
                assert_eq!(cursor.progress(current), None, "overtakes a fragment");
            }
            sent += 1;
            if sent == script.messages {
                cursor.broken();
                return;
            }
            rest = tail;
        }
        at = end;
        if script.progress[turn % script.progress.len()] {
            // Right by the server's books; must not hide what comes next.
            cursor.progress(i64::try_from(at).expect("short"));
        }
        turn += 1;
    }
    cursor.broken();
}

proptest! {
    #[test]
    fn any_streams_add_up_to_the_history(
        sizes in prop::collection::vec(1..5_usize, 1..40),
        start in 1..10_i64,
        streams in prop::collection::vec(stream(), 0..8),
    ) {
        let history: Vec<Vec<Event>> = (1..)
            .zip(&sizes)
            .map(|(revision, &of)| (0..of).map(|n| Event(revision, n, of)).collect())
            .collect();
        let mut cursor = Cursor::new(start);
        let mut got = Vec::new();
        for script in &streams {
            play(&mut cursor, &history, script, &mut got);
            // Whatever was delivered so far is a gapless beginning made of whole revisions.
            prop_assert!(got.last().is_none_or(|last| last.1 + 1 == last.2));
        }
        let last = Stream {
            batches: vec![3], fragments: vec![2], messages: 0, rewind: 0, progress: vec![false], stutter: false,
        };
        play(&mut cursor, &history, &last, &mut got);
        let wanted: Vec<Event> =
            history.concat().into_iter().filter(|event| event.0 >= start).collect();
        prop_assert_eq!(got, wanted);
    }

    #[test]
    fn nothing_a_server_says_moves_the_cursor_back(
        start in 0..50_i64,
        words in prop::collection::vec((0..5_u8, 0..60_i64, 0..60_i64, any::<bool>()), 0..40),
    ) {
        let mut cursor = Cursor::new(start);
        let (mut next, mut last) = (cursor.next_revision(), 0);
        for (word, a, b, fragment) in words {
            match word {
                0 => { cursor.created(a, 1); }
                1 => cursor.broken(),
                2 => { cursor.progress(a); }
                3 => cursor.resynced(a),
                _ => if let Some(batch) = cursor.events(vec![at(a), at(b)], fragment) {
                    for (revision, _) in batch.revisions() {
                        prop_assert!(revision > last && revision >= next);
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
