use super::{
    CreatePairing, FIRST_ID, IdSource, MAX_UNKNOWN_IDS, NO_WATCH, Removed, ResponseTarget,
};
use crate::proto::{ResponseHeader, WatchResponse};

pub(super) fn created(watch_id: i64) -> WatchResponse {
    WatchResponse {
        watch_id,
        created: true,
        header: Some(ResponseHeader {
            revision: 10,
            ..ResponseHeader::default()
        }),
        ..WatchResponse::default()
    }
}

pub(super) fn refused() -> WatchResponse {
    WatchResponse {
        watch_id: NO_WATCH,
        created: true,
        canceled: true,
        ..WatchResponse::default()
    }
}

pub(super) fn canceled(watch_id: i64) -> WatchResponse {
    WatchResponse {
        watch_id,
        canceled: true,
        ..WatchResponse::default()
    }
}

pub(super) fn events(watch_id: i64) -> WatchResponse {
    WatchResponse {
        watch_id,
        ..WatchResponse::default()
    }
}

fn live(names: &[&'static str]) -> CreatePairing<&'static str> {
    let mut pairing = CreatePairing::default();
    for name in names {
        create(&mut pairing, name, 1);
    }
    pairing
}

/// Adds a watch and pairs the response to its create. Returns its id.
fn create(
    pairing: &mut CreatePairing<&'static str>,
    name: &'static str,
    start_revision: i64,
) -> i64 {
    let id = pairing.create(name, start_revision);
    assert_eq!(send(pairing), [id]);
    assert!(matches!(
        pairing.pair(&created(id)),
        ResponseTarget::Created { .. }
    ));
    id
}

/// Sends all creates that may be sent now and returns their ids.
fn send<W>(pairing: &mut CreatePairing<W>) -> Vec<i64> {
    let mut sent = Vec::new();
    while let Some(create) = pairing.next_to_send() {
        sent.push(create.id);
    }
    sent
}

/// Returns a pairing whose server is known to use the client's ids, with these creates in flight, and their ids.
fn in_flight<const N: usize>(names: [&'static str; N]) -> (CreatePairing<&'static str>, [i64; N]) {
    let mut pairing = live(&["first"]);
    assert_eq!(pairing.cancel(FIRST_ID), Removed::Sent("first"));
    assert_eq!(pairing.pair(&canceled(FIRST_ID)), ResponseTarget::Ignored);
    let ids = names.map(|name| pairing.create(name, 1));
    assert_eq!(send(&mut pairing), ids);
    (pairing, ids)
}

#[test]
fn creates_pair_by_id_and_refusal_by_order() {
    let (mut pairing, [a, _, c]) = in_flight(["a", "b", "c"]);
    assert_eq!(
        pairing.pair(&created(a)),
        ResponseTarget::Created {
            id: a,
            watch: &mut "a"
        }
    );
    assert_eq!(
        pairing.pair(&refused()),
        ResponseTarget::Refused { watch: "b" }
    );
    assert_eq!(
        pairing.pair(&created(c)),
        ResponseTarget::Created {
            id: c,
            watch: &mut "c"
        }
    );
    assert_eq!(
        pairing.pair(&events(a)),
        ResponseTarget::Watch { watch: &mut "a" }
    );
    assert_eq!((pairing.len(), pairing.in_flight()), (2, 0));
}

#[test]
fn creates_wait_until_chooser_of_ids_is_known() {
    let mut pairing = CreatePairing::default();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| pairing.create(name, 1));
    assert_eq!(send(&mut pairing), [a]);
    assert_eq!(send(&mut pairing), [0; 0]);
    assert_eq!(
        pairing.pair(&refused()),
        ResponseTarget::Refused { watch: "a" }
    );
    assert_eq!(pairing.id_source(), IdSource::Unknown);
    assert_eq!(send(&mut pairing), [b], "a refusal names no id");
    assert!(matches!(
        pairing.pair(&created(b)),
        ResponseTarget::Created { .. }
    ));
    assert_eq!(pairing.id_source(), IdSource::Client);
    assert_eq!(send(&mut pairing), [c, d]);
}

#[test]
fn server_chosen_ids_limit_creates_to_one() {
    let mut pairing = CreatePairing::default();
    let [a, b, c] = ["a", "b", "c"].map(|name| pairing.create(name, 1));
    assert_eq!(send(&mut pairing), [a]);
    assert_eq!(
        pairing.pair(&created(0)),
        ResponseTarget::Created {
            id: 0,
            watch: &mut "a"
        }
    );
    assert_eq!(pairing.id_source(), IdSource::Server);
    assert_eq!(pairing.cancel(a), Removed::Nothing);
    assert_eq!(send(&mut pairing), [b]);
    assert_eq!(
        pairing.pair(&events(0)),
        ResponseTarget::Watch { watch: &mut "a" }
    );
    assert_eq!(send(&mut pairing), [0; 0], "`b` has no response");
    assert_eq!(
        pairing.pair(&refused()),
        ResponseTarget::Refused { watch: "b" }
    );
    assert_eq!(send(&mut pairing), [c]);
    assert_eq!(
        pairing.pair(&created(1)),
        ResponseTarget::Created {
            id: 1,
            watch: &mut "c"
        }
    );
    let d = pairing.create("d", 1);
    assert_eq!(send(&mut pairing), [d]);
    assert_eq!(
        pairing.pair(&created(d)),
        ResponseTarget::OutOfStep,
        "the server has chosen ids so far"
    );
}

#[test]
fn early_cancel_uses_id_chosen_by_server() {
    let mut pairing = CreatePairing::default();
    let id = pairing.create("a", 1);
    assert_eq!(send(&mut pairing), [id]);
    assert_eq!(pairing.cancel(id), Removed::Sent("a"));
    assert_eq!(
        pairing.pair(&created(41)),
        ResponseTarget::Unknown { id: 41 },
        "its cancel named another id"
    );
    assert_eq!(pairing.pair(&canceled(41)), ResponseTarget::Ignored);
}

#[test]
fn watch_without_create_is_removed_without_cancel() {
    let mut pairing = CreatePairing::default();
    let [a, b, c] = ["a", "b", "c"].map(|name| pairing.create(name, 1));
    assert_eq!(send(&mut pairing), [a]);
    assert_eq!(pairing.cancel(b), Removed::Unsent("b"));
    assert_eq!(pairing.cancel(b), Removed::Nothing);
    assert_eq!(pairing.take_waiting(1).count(), 0);
    assert_eq!(pairing.take_waiting(0).collect::<Vec<_>>(), ["c"]);
    assert_eq!(pairing.cancel(c), Removed::Nothing);
    assert_eq!(pairing.len(), 1);
}

#[test]
fn refusal_naming_its_id_is_accepted() {
    let mut pairing = CreatePairing::default();
    let id = pairing.create("a", 1);
    assert_eq!(send(&mut pairing), [id]);
    assert_eq!(
        pairing.pair(&WatchResponse {
            watch_id: id,
            ..refused()
        }),
        ResponseTarget::Refused { watch: "a" }
    );
}

#[test]
fn ids_are_never_reused() {
    let mut pairing = live(&["a"]);
    assert_eq!(pairing.cancel(FIRST_ID), Removed::Sent("a"));
    assert_eq!(pairing.pair(&canceled(FIRST_ID)), ResponseTarget::Ignored);
    assert_eq!(pairing.create("b", 1), FIRST_ID + 1);
}

#[test]
fn response_out_of_order_closes_stream() {
    let (mut pairing, [_, b]) = in_flight(["a", "b"]);
    assert_eq!(pairing.pair(&created(b)), ResponseTarget::OutOfStep);
    assert_eq!(
        pairing.pair(&created(0)),
        ResponseTarget::OutOfStep,
        "the server used the client's ids so far"
    );
    assert_eq!(
        live(&["a"]).pair(&refused()),
        ResponseTarget::OutOfStep,
        "no create is in flight"
    );
    assert_eq!(live(&["a"]).pair(&created(7)), ResponseTarget::OutOfStep);
    pairing.create("c", 1);
    assert_eq!(
        pairing.into_watches().collect::<Vec<_>>(),
        ["a", "b", "c"],
        "no watch is lost"
    );
}

#[test]
fn repeated_created_is_ignored() {
    assert_eq!(
        live(&["a"]).pair(&created(FIRST_ID)),
        ResponseTarget::Ignored
    );
}

#[test]
fn cancel_before_created_is_sent_once() {
    let mut pairing = CreatePairing::default();
    let id = pairing.create("a", 1);
    assert_eq!(send(&mut pairing), [id]);
    assert_eq!(pairing.cancel(id), Removed::Sent("a"));
    assert_eq!(pairing.cancel(id), Removed::Nothing);
    assert_eq!((pairing.len(), pairing.in_flight()), (0, 1));
    assert_eq!(pairing.pair(&created(id)), ResponseTarget::Ignored);
    assert_eq!(pairing.pair(&events(id)), ResponseTarget::Ignored);
    assert_eq!(pairing.pair(&canceled(id)), ResponseTarget::Ignored);
    assert!(pairing.canceling.is_empty());
}

#[test]
fn cancel_before_refusal_keeps_pairing_in_step() {
    let (mut pairing, [gone, next]) = in_flight(["gone", "next"]);
    assert_eq!(pairing.cancel(gone), Removed::Sent("gone"));
    assert_eq!(pairing.pair(&refused()), ResponseTarget::Ignored);
    assert_eq!(
        pairing.pair(&created(next)),
        ResponseTarget::Created {
            id: next,
            watch: &mut "next"
        }
    );
}

#[test]
fn cancel_crossing_server_cancel_is_handled_once() {
    const A: i64 = FIRST_ID;
    let mut pairing = live(&["a"]);
    assert_eq!(
        pairing.pair(&canceled(A)),
        ResponseTarget::Canceled {
            id: A,
            watch: "a",
            send_cancel: false
        }
    );
    assert_eq!(
        pairing.cancel(A),
        Removed::Nothing,
        "the server no longer knows it"
    );
    let mut pairing = live(&["a"]);
    assert_eq!(pairing.cancel(A), Removed::Sent("a"));
    assert_eq!(
        pairing.pair(&WatchResponse {
            compact_revision: 5,
            ..canceled(A)
        }),
        ResponseTarget::Ignored
    );
    assert_eq!(pairing.pair(&canceled(A)), ResponseTarget::Ignored);
}

#[test]
fn compacted_watch_needs_a_cancel() {
    let mut pairing = live(&["a"]);
    let compacted = WatchResponse {
        compact_revision: 5,
        ..canceled(FIRST_ID)
    };
    assert_eq!(
        pairing.pair(&compacted),
        ResponseTarget::Canceled {
            id: FIRST_ID,
            watch: "a",
            send_cancel: true
        }
    );
    assert_eq!(pairing.pair(&canceled(FIRST_ID)), ResponseTarget::Ignored);
    assert!(pairing.canceling.is_empty());
}

#[test]
fn unknown_id_is_cancelled_once_up_to_limit() {
    let mut pairing = live(&["a"]);
    assert_eq!(
        pairing.pair(&events(99)),
        ResponseTarget::Unknown { id: 99 }
    );
    assert_eq!(pairing.pair(&events(99)), ResponseTarget::Ignored);
    assert_eq!(pairing.pair(&canceled(99)), ResponseTarget::Ignored);
    for id in (100..).take(MAX_UNKNOWN_IDS - 1) {
        assert_eq!(pairing.pair(&events(id)), ResponseTarget::Unknown { id });
    }
    assert_eq!(pairing.pair(&events(5000)), ResponseTarget::OutOfStep);
}

#[test]
fn progress_requested_before_create_excludes_the_watch() {
    let mut pairing = live(&["old"]);
    pairing.progress_requested();
    create(&mut pairing, "new", 1);
    assert_eq!(pairing.pair(&events(NO_WATCH)), ResponseTarget::Stream);
    assert_eq!(
        pairing.covered_by_progress(10).collect::<Vec<_>>(),
        [&mut "old"]
    );
    pairing.progress_requested();
    assert_eq!(
        pairing.covered_by_progress(10).count(),
        2,
        "requested after both were created"
    );
}

#[test]
fn earlier_progress_reaches_watch_it_cannot_mislead() {
    // etcd never responds to some requests; they must not withhold progress from later watches.
    for (start, covered) in [(0, 1), (11, 1), (50, 1), (10, 0), (1, 0)] {
        let mut pairing = CreatePairing::default();
        pairing.progress_requested();
        create(&mut pairing, "a", start);
        assert_eq!(
            pairing.covered_by_progress(10).count(),
            covered,
            "from {start} on"
        );
    }
}

#[test]
fn earlier_progress_is_complete_after_next_message() {
    let mut pairing = CreatePairing::default();
    pairing.progress_requested();
    let id = create(&mut pairing, "a", 1);
    assert_eq!(
        pairing.pair(&events(id)),
        ResponseTarget::Watch { watch: &mut "a" }
    );
    assert_eq!(pairing.covered_by_progress(10).count(), 1);
}

#[test]
fn progress_beyond_the_create_covers_the_watch() {
    let mut pairing = CreatePairing::default();
    pairing.progress_requested();
    create(&mut pairing, "a", 1);
    assert_eq!(pairing.covered_by_progress(11).count(), 1);
}
