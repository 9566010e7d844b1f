use super::{EventKind, History, KeyEvent, Previous, Record, Request, all};
use super::{atomic, bookmarkable, ordered, reliable, resumable, truthful, unique};

fn put(key: &str, revision: i64) -> KeyEvent {
    KeyEvent {
        kind: EventKind::Put,
        key: key.into(),
        value: format!("{key}@{revision}").into(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        previous: None,
    }
}

fn delete(key: &str, revision: i64) -> KeyEvent {
    let written = put(key, revision);
    KeyEvent {
        kind: EventKind::Delete,
        value: Vec::new(),
        create_revision: 0,
        version: 0,
        ..written
    }
}

fn events(changes: &[KeyEvent]) -> Record {
    Record::Events {
        revision: changes[0].mod_revision,
        events: changes.to_vec(),
    }
}

/// Revision 4 is outside the prefix; revision 5 changes two keys.
fn history() -> History {
    History::new([
        put("k/a", 2),
        put("k/b", 3),
        put("other", 4),
        put("k/c", 5),
        delete("k/a", 5),
        put("k/a", 6),
        delete("k/b", 7),
    ])
}

fn complete_record() -> Vec<Record> {
    vec![
        events(&[put("k/a", 2)]),
        events(&[put("k/b", 3)]),
        Record::Disconnected,
        Record::Resumed,
        Record::Progress(4),
        events(&[delete("k/a", 5), put("k/c", 5)]),
        events(&[put("k/a", 6)]),
        events(&[delete("k/b", 7)]),
        Record::Progress(9),
    ]
}

fn request() -> Request {
    Request::prefix("k/", 2)
}

#[track_caller]
fn assert_violation(result: Result<(), String>, text: &str) {
    let message = result.expect_err("the violation was not detected");
    assert!(
        message.contains(text),
        "{message:?} does not contain {text:?}"
    );
}

#[test]
fn valid_record_passes_all() {
    assert_eq!(all(&request(), &complete_record(), &history()), Ok(()));
    assert_eq!(
        all(&request(), &complete_record()[..6], &history()),
        Ok(()),
        "a partial record"
    );
    assert_eq!(all(&request(), &[], &history()), Ok(()));
    let later = Request {
        start_revision: 4,
        ..request()
    };
    assert_eq!(all(&later, &complete_record()[4..], &history()), Ok(()));
    let single = Request::key("k/b", 1);
    let records = [events(&[put("k/b", 3)]), events(&[delete("k/b", 7)])];
    assert_eq!(all(&single, &records, &history()), Ok(()));
    let puts = Request {
        no_deletes: true,
        ..single
    };
    assert_eq!(all(&puts, &records[..1], &history()), Ok(()));
}

#[test]
fn ordered_fails_on_earlier_revision() {
    let mut records = complete_record();
    records.swap(0, 1);
    assert_violation(
        ordered(&records),
        "not ordered: item 1 has revision 2 after 3",
    );
}

#[test]
fn unique_fails_on_repeated_event() {
    let mut records = complete_record();
    records.insert(4, records[1].clone());
    assert_violation(
        unique(&records),
        "not unique: item 4 repeats put of \"k/b\" at revision 3 of item 1",
    );
}

#[test]
fn atomic_fails_on_split_or_mixed_revisions() {
    let split = [events(&[delete("k/a", 5)]), events(&[put("k/c", 5)])];
    assert_violation(atomic(&split), "not atomic: item 1 continues revision 5");
    let apart = [split[0].clone(), Record::Progress(5), split[1].clone()];
    assert_violation(atomic(&apart), "item 2 continues");
    assert_violation(
        atomic(&[events(&[put("k/a", 2), put("k/b", 3)])]),
        "item 0 of revision 2 has put of \"k/b\"",
    );
    assert_violation(
        atomic(&[Record::Events {
            revision: 2,
            events: vec![],
        }]),
        "is empty",
    );
}

#[test]
fn bookmarkable_fails_on_early_or_decreasing_progress() {
    let overtaken = [Record::Progress(3), events(&[put("k/b", 3)])];
    assert_violation(
        bookmarkable(&overtaken),
        "item 1 has put of \"k/b\" at revision 3 after progress 3",
    );
    assert_violation(
        bookmarkable(&[Record::Progress(5), Record::Progress(4)]),
        "progress 4 after 5",
    );
    assert_violation(
        bookmarkable(&[events(&[put("k/a", 6)]), Record::Progress(5)]),
        "progress 5 after events of 6",
    );
}

#[test]
fn resumable_fails_on_wrong_first_event() {
    let late = &complete_record()[1..];
    assert_violation(
        resumable(&request(), late, &history()),
        "the first change from revision 2 is put of \"k/a\" at revision 2, got put of \"k/b\"",
    );
    let after = Request {
        start_revision: 8,
        ..request()
    };
    assert_violation(
        resumable(&after, late, &history()),
        "no change from revision 8",
    );
}

#[test]
fn reliable_fails_on_missing_or_invented_events() {
    let mut gap = complete_record();
    gap.remove(6);
    assert_violation(
        reliable(&request(), &gap, &history()),
        "put of \"k/a\" at revision 6 is missing",
    );
    let mut partial = complete_record();
    partial[5] = events(&[delete("k/a", 5)]);
    assert_violation(
        reliable(&request(), &partial, &history()),
        "put of \"k/c\" at revision 5 is missing",
    );
    let mut foreign = complete_record();
    foreign[4] = events(&[put("other", 4)]);
    assert_violation(
        reliable(&request(), &foreign, &history()),
        "put of \"other\" at revision 4 never happened or was not",
    );
    let mut invented = complete_record();
    invented.push(events(&[put("k/z", 10)]));
    assert_violation(
        reliable(&request(), &invented, &history()),
        "\"k/z\" at revision 10 never happened",
    );
}

#[test]
fn reliable_fails_if_progress_skips_an_event() {
    let records = [events(&[put("k/a", 2)]), Record::Progress(4)];
    assert_violation(
        reliable(&request(), &records, &history()),
        "put of \"k/b\" at revision 3 is missing",
    );
}

#[test]
fn unbounded_watch_begins_at_first_reported_revision() {
    let now = Request {
        start_revision: 0,
        ..request()
    };
    assert_eq!(all(&now, &complete_record()[4..], &history()), Ok(()));
    let gap = [events(&[put("k/b", 3)]), events(&[put("k/a", 6)])];
    assert_violation(all(&now, &gap, &history()), "revision 5 is missing");
}

#[test]
fn resync_replaces_only_events_it_covers() {
    let records = [
        events(&[put("k/a", 2)]),
        Record::Resynced(6),
        events(&[delete("k/b", 7)]),
    ];
    assert_eq!(all(&request(), &records, &history()), Ok(()));
    assert_eq!(
        all(&request(), &records[1..], &history()),
        Ok(()),
        "before any event"
    );
    let early = [
        events(&[put("k/a", 2)]),
        Record::Resynced(5),
        events(&[delete("k/b", 7)]),
    ];
    assert_violation(
        all(&request(), &early, &history()),
        "put of \"k/a\" at revision 6 is missing",
    );
}

#[test]
fn truthful_fails_on_wrong_content_or_previous_state() {
    let record = |change: KeyEvent| [events(&[change])];
    let wrong = KeyEvent {
        value: b"x".into(),
        ..put("k/a", 2)
    };
    assert_violation(
        truthful(&request(), &record(wrong), &history()),
        "but the history has",
    );
    let created = KeyEvent {
        create_revision: 1,
        ..put("k/a", 2)
    };
    assert_violation(
        truthful(&request(), &record(created), &history()),
        "but the history has",
    );

    let with_previous = Request {
        prev_kv: true,
        ..request()
    };
    let before = Previous {
        value: b"k/b@3".into(),
        mod_revision: 3,
    };
    let valid = KeyEvent {
        previous: Some(before.clone()),
        ..delete("k/b", 7)
    };
    assert_eq!(
        truthful(&with_previous, &record(valid.clone()), &history()),
        Ok(())
    );
    assert_violation(
        truthful(&request(), &record(valid), &history()),
        "was not requested",
    );
    let stale = Previous {
        mod_revision: 2,
        ..before.clone()
    };
    assert_violation(
        truthful(
            &with_previous,
            &record(KeyEvent {
                previous: Some(stale),
                ..delete("k/b", 7)
            }),
            &history(),
        ),
        "the previous state was",
    );
    let without_previous = KeyEvent {
        previous: Some(before),
        ..put("k/a", 6)
    };
    assert_violation(
        truthful(&with_previous, &record(without_previous), &history()),
        "the previous state was None",
    );
}

#[test]
fn prefix_range_end_follows_last_key() {
    assert_eq!(Request::prefix("k/", 0).range_end, Some(b"k0".to_vec()));
    assert_eq!(
        Request::prefix([b'a', 0xff], 0).range_end,
        Some(b"b".to_vec())
    );
    assert!(Request::prefix([0xff], 0).matches(&KeyEvent {
        key: vec![0xff, 1],
        ..put("", 2)
    }));
    assert!(!Request::prefix("k/", 0).matches(&put("k0", 2)));
}
