//! Properties that hold for any sequence of streams and messages.

use proptest::prelude::*;

use super::{AFTER_EVENTS, Cursor, ProgressOrder, TestEvent, at, by_revision};

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
