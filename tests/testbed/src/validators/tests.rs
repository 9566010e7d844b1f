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
    let gone = put(key, revision);
    KeyEvent {
        kind: EventKind::Delete,
        value: Vec::new(),
        create_revision: 0,
        version: 0,
        ..gone
    }
}

fn events(changes: &[KeyEvent]) -> Record {
    Record::Events {
        revision: changes[0].mod_revision,
        events: changes.to_vec(),
    }
}

/// Revision 4 is elsewhere; revision 5 changes two keys.
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

fn whole() -> Vec<Record> {
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
fn violates(result: Result<(), String>, text: &str) {
    let message = result.expect_err("a violation was not seen");
    assert!(message.contains(text), "{message:?} does not say {text:?}");
}

#[test]
fn right_record_passes_all() {
    assert_eq!(all(&request(), &whole(), &history()), Ok(()));
    assert_eq!(
        all(&request(), &whole()[..6], &history()),
        Ok(()),
        "not at the end yet"
    );
    assert_eq!(all(&request(), &[], &history()), Ok(()));
    let later = Request {
        start_revision: 4,
        ..request()
    };
    assert_eq!(all(&later, &whole()[4..], &history()), Ok(()));
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
fn ordered_fails_on_an_earlier_revision() {
    let mut records = whole();
    records.swap(0, 1);
    violates(
        ordered(&records),
        "not ordered: item 1 has revision 2 after 3",
    );
}

#[test]
fn unique_fails_on_a_repeat() {
    let mut records = whole();
    records.insert(4, records[1].clone());
    violates(
        unique(&records),
        "not unique: item 4 repeats put of \"k/b\" at revision 3 of item 1",
    );
}

#[test]
fn atomic_fails_on_a_split_revision_and_on_a_mixed_item() {
    let split = [events(&[delete("k/a", 5)]), events(&[put("k/c", 5)])];
    violates(atomic(&split), "not atomic: item 1 goes on with revision 5");
    let apart = [split[0].clone(), Record::Progress(5), split[1].clone()];
    violates(atomic(&apart), "item 2 goes on");
    violates(
        atomic(&[events(&[put("k/a", 2), put("k/b", 3)])]),
        "item 0 of revision 2 has put of \"k/b\"",
    );
    violates(
        atomic(&[Record::Events {
            revision: 2,
            events: vec![],
        }]),
        "is empty",
    );
}

#[test]
fn bookmarkable_fails_if_progress_overtakes_or_goes_back() {
    let overtaken = [Record::Progress(3), events(&[put("k/b", 3)])];
    violates(
        bookmarkable(&overtaken),
        "item 1 has put of \"k/b\" at revision 3 after progress 3",
    );
    violates(
        bookmarkable(&[Record::Progress(5), Record::Progress(4)]),
        "progress 4 after 5",
    );
    violates(
        bookmarkable(&[events(&[put("k/a", 6)]), Record::Progress(5)]),
        "progress 5 after events of 6",
    );
}

#[test]
fn resumable_fails_if_the_first_event_is_not_the_first() {
    let late = &whole()[1..];
    violates(
        resumable(&request(), late, &history()),
        "the first is put of \"k/a\" at revision 2, got put of \"k/b\"",
    );
    let after = Request {
        start_revision: 8,
        ..request()
    };
    violates(
        resumable(&after, late, &history()),
        "nothing happened from revision 8 on",
    );
}

#[test]
fn reliable_fails_on_a_gap_a_partial_revision_and_an_invention() {
    let mut gap = whole();
    gap.remove(6);
    violates(
        reliable(&request(), &gap, &history()),
        "put of \"k/a\" at revision 6 is missing",
    );
    let mut partial = whole();
    partial[5] = events(&[delete("k/a", 5)]);
    violates(
        reliable(&request(), &partial, &history()),
        "put of \"k/c\" at revision 5 is missing",
    );
    let mut foreign = whole();
    foreign[4] = events(&[put("other", 4)]);
    violates(
        reliable(&request(), &foreign, &history()),
        "put of \"other\" at revision 4 never happened or was not",
    );
    let mut invented = whole();
    invented.push(events(&[put("k/z", 10)]));
    violates(
        reliable(&request(), &invented, &history()),
        "\"k/z\" at revision 10 never happened",
    );
}

#[test]
fn reliable_fails_if_progress_passes_over_an_event() {
    let records = [events(&[put("k/a", 2)]), Record::Progress(4)];
    violates(
        reliable(&request(), &records, &history()),
        "put of \"k/b\" at revision 3 is missing",
    );
}

#[test]
fn watch_from_now_on_begins_with_what_it_first_tells() {
    let now = Request {
        start_revision: 0,
        ..request()
    };
    assert_eq!(all(&now, &whole()[4..], &history()), Ok(()));
    let gap = [events(&[put("k/b", 3)]), events(&[put("k/a", 6)])];
    violates(all(&now, &gap, &history()), "revision 5 is missing");
}

#[test]
fn resync_replaces_what_it_read_and_nothing_else() {
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
    violates(
        all(&request(), &early, &history()),
        "put of \"k/a\" at revision 6 is missing",
    );
}

#[test]
fn truthful_fails_on_a_wrong_value_or_a_wrong_state_before() {
    let with = |change: KeyEvent| [events(&[change])];
    let wrong = KeyEvent {
        value: b"x".into(),
        ..put("k/a", 2)
    };
    violates(truthful(&request(), &with(wrong), &history()), "but it was");
    let created = KeyEvent {
        create_revision: 1,
        ..put("k/a", 2)
    };
    violates(
        truthful(&request(), &with(created), &history()),
        "but it was",
    );

    let asked = Request {
        prev_kv: true,
        ..request()
    };
    let before = Previous {
        value: b"k/b@3".into(),
        mod_revision: 3,
    };
    let right = KeyEvent {
        previous: Some(before.clone()),
        ..delete("k/b", 7)
    };
    assert_eq!(truthful(&asked, &with(right.clone()), &history()), Ok(()));
    violates(
        truthful(&request(), &with(right), &history()),
        "nobody asked",
    );
    let stale = Previous {
        mod_revision: 2,
        ..before.clone()
    };
    violates(
        truthful(
            &asked,
            &with(KeyEvent {
                previous: Some(stale),
                ..delete("k/b", 7)
            }),
            &history(),
        ),
        "told",
    );
    let from_nothing = KeyEvent {
        previous: Some(before),
        ..put("k/a", 6)
    };
    violates(
        truthful(&asked, &with(from_nothing), &history()),
        "before it was None",
    );
}

#[test]
fn prefix_ends_after_its_last_key() {
    assert_eq!(Request::prefix("k/", 0).range_end, Some(b"k0".to_vec()));
    assert_eq!(
        Request::prefix([b'a', 0xff], 0).range_end,
        Some(b"b".to_vec())
    );
    assert!(Request::prefix([0xff], 0).wants(&KeyEvent {
        key: vec![0xff, 1],
        ..put("", 2)
    }));
    assert!(!Request::prefix("k/", 0).wants(&put("k0", 2)));
}
