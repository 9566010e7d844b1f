use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{CreatePairing, MAX_UNKNOWN_IDS, NO_WATCH, ResponseTarget};
use crate::proto::{ResponseHeader, WatchResponse};

fn created(watch_id: i64) -> WatchResponse {
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

fn refused() -> WatchResponse {
    WatchResponse {
        watch_id: NO_WATCH,
        created: true,
        canceled: true,
        ..WatchResponse::default()
    }
}

fn canceled(watch_id: i64) -> WatchResponse {
    WatchResponse {
        watch_id,
        canceled: true,
        ..WatchResponse::default()
    }
}

fn events(watch_id: i64) -> WatchResponse {
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
    assert!(matches!(
        pairing.pair(&created(id)),
        ResponseTarget::Created { .. }
    ));
    id
}

#[test]
fn creates_pair_by_id_and_refusal_by_order() {
    let mut pairing = CreatePairing::default();
    let ids = ["a", "b", "c"].map(|name| pairing.create(name, 1));
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(
        pairing.pair(&created(1)),
        ResponseTarget::Created {
            id: 1,
            watch: &mut "a"
        }
    );
    assert_eq!(
        pairing.pair(&refused()),
        ResponseTarget::Refused { watch: "b" }
    );
    assert_eq!(
        pairing.pair(&created(3)),
        ResponseTarget::Created {
            id: 3,
            watch: &mut "c"
        }
    );
    assert_eq!(
        pairing.pair(&events(1)),
        ResponseTarget::Watch { watch: &mut "a" }
    );
    assert_eq!((pairing.len(), pairing.in_flight()), (2, 0));
}

#[test]
fn refusal_naming_its_id_is_accepted() {
    let mut pairing = CreatePairing::default();
    let id = pairing.create("a", 1);
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
    assert_eq!(pairing.cancel(1), Some("a"));
    assert_eq!(pairing.pair(&canceled(1)), ResponseTarget::Ignored);
    assert_eq!(pairing.create("b", 1), 2);
}

#[test]
fn response_out_of_order_closes_stream() {
    let mut pairing = CreatePairing::default();
    pairing.create("a", 1);
    pairing.create("b", 1);
    assert_eq!(pairing.pair(&created(2)), ResponseTarget::OutOfStep);
    assert_eq!(
        live(&["a"]).pair(&refused()),
        ResponseTarget::OutOfStep,
        "no create is in flight"
    );
    assert_eq!(live(&["a"]).pair(&created(7)), ResponseTarget::OutOfStep);
    assert_eq!(
        pairing.into_watches().collect::<Vec<_>>(),
        ["a", "b"],
        "no watch is lost"
    );
}

#[test]
fn proxy_chosen_id_is_accepted_if_unambiguous() {
    let mut pairing = CreatePairing::default();
    let id = pairing.create("a", 1);
    assert_eq!(
        pairing.pair(&created(40)),
        ResponseTarget::Created {
            id: 40,
            watch: &mut "a"
        }
    );
    assert_eq!(pairing.cancel(id), None);
    assert_eq!(
        pairing.pair(&events(40)),
        ResponseTarget::Watch { watch: &mut "a" }
    );
    pairing.create("b", 1);
    pairing.create("c", 1);
    assert_eq!(
        pairing.pair(&created(41)),
        ResponseTarget::AmbiguousId,
        "two creates are in flight"
    );
    let mut pairing = CreatePairing::default();
    let id = pairing.create("b", 1);
    assert_eq!(pairing.cancel(id), Some("b"));
    assert_eq!(
        pairing.pair(&created(41)),
        ResponseTarget::Unknown { id: 41 },
        "its cancel named another id"
    );
    assert_eq!(pairing.pair(&canceled(41)), ResponseTarget::Ignored);
}

#[test]
fn repeated_created_is_ignored() {
    assert_eq!(live(&["a"]).pair(&created(1)), ResponseTarget::Ignored);
}

#[test]
fn cancel_before_created_is_sent_once() {
    let mut pairing = CreatePairing::default();
    let id = pairing.create("a", 1);
    assert_eq!(pairing.cancel(id), Some("a"));
    assert_eq!(pairing.cancel(id), None);
    assert_eq!((pairing.len(), pairing.in_flight()), (0, 1));
    assert_eq!(pairing.pair(&created(id)), ResponseTarget::Ignored);
    assert_eq!(pairing.pair(&events(id)), ResponseTarget::Ignored);
    assert_eq!(pairing.pair(&canceled(id)), ResponseTarget::Ignored);
    assert!(pairing.canceling.is_empty());
}

#[test]
fn cancel_before_refusal_keeps_pairing_in_step() {
    let mut pairing = CreatePairing::default();
    let gone = pairing.create("gone", 1);
    pairing.create("next", 1);
    assert_eq!(pairing.cancel(gone), Some("gone"));
    assert_eq!(pairing.pair(&refused()), ResponseTarget::Ignored);
    assert_eq!(
        pairing.pair(&created(2)),
        ResponseTarget::Created {
            id: 2,
            watch: &mut "next"
        }
    );
}

#[test]
fn cancel_crossing_server_cancel_is_handled_once() {
    let mut pairing = live(&["a"]);
    assert_eq!(
        pairing.pair(&canceled(1)),
        ResponseTarget::Canceled {
            id: 1,
            watch: "a",
            send_cancel: false
        }
    );
    assert_eq!(pairing.cancel(1), None, "the server no longer knows it");
    let mut pairing = live(&["a"]);
    assert_eq!(pairing.cancel(1), Some("a"));
    assert_eq!(
        pairing.pair(&WatchResponse {
            compact_revision: 5,
            ..canceled(1)
        }),
        ResponseTarget::Ignored
    );
    assert_eq!(pairing.pair(&canceled(1)), ResponseTarget::Ignored);
}

#[test]
fn compacted_watch_needs_a_cancel() {
    let mut pairing = live(&["a"]);
    let compacted = WatchResponse {
        compact_revision: 5,
        ..canceled(1)
    };
    assert_eq!(
        pairing.pair(&compacted),
        ResponseTarget::Canceled {
            id: 1,
            watch: "a",
            send_cancel: true
        }
    );
    assert_eq!(pairing.pair(&canceled(1)), ResponseTarget::Ignored);
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

/// A step of a server that handles requests in order.
#[derive(Debug, Clone)]
enum ServerStep {
    Create { refuse: bool },
    Cancel { nth: usize },
    Compact { nth: usize },
    Receive,
}

fn step() -> impl Strategy<Value = ServerStep> {
    prop_oneof![
        3 => any::<bool>().prop_map(|refuse| ServerStep::Create { refuse }),
        1 => (0..20_usize).prop_map(|nth| ServerStep::Cancel { nth }),
        1 => (0..20_usize).prop_map(|nth| ServerStep::Compact { nth }),
        2 => Just(ServerStep::Receive),
    ]
}

proptest! {
    /// With any requests in flight, every response is paired with its watch, and no state is left over.
    #[test]
    fn every_response_finds_its_watch(steps in prop::collection::vec(step(), 0..60)) {
        let mut pairing = CreatePairing::default();
        let (mut wanted, mut serial) = (BTreeMap::new(), 0_u32);
        let (mut server, mut queue) = (BTreeMap::new(), std::collections::VecDeque::new());
        let mut remaining = steps.len();
        for step in steps.into_iter().chain(std::iter::repeat_with(|| ServerStep::Receive)) {
            match step {
                ServerStep::Create { refuse } => {
                    serial += 1;
                    let id = pairing.create(serial, 1);
                    wanted.insert(id, serial);
                    if refuse {
                        queue.push_back(refused());
                    } else {
                        server.insert(id, serial);
                        queue.push_back(created(id));
                        queue.push_back(events(id));
                    }
                }
                ServerStep::Cancel { nth } => if let Some(&id) = wanted.keys().nth(nth) {
                    let watch = wanted.remove(&id);
                    prop_assert_eq!(pairing.cancel(id), watch);
                    if server.remove(&id).is_some() {
                        queue.push_back(canceled(id));
                    }
                },
                ServerStep::Compact { nth } => if let Some(&id) = server.keys().nth(nth) {
                    queue.push_back(WatchResponse { compact_revision: 9, ..canceled(id) });
                },
                ServerStep::Receive if queue.is_empty() => {
                    if remaining == 0 { break }
                }
                ServerStep::Receive => {
                    let response: WatchResponse = queue.pop_front().expect("not empty");
                    match pairing.pair(&response) {
                        ResponseTarget::Created { id, watch } => {
                            prop_assert_eq!(wanted.get(&id), Some(&*watch));
                        }
                        ResponseTarget::Watch { watch } => {
                            prop_assert_eq!(wanted.get(&response.watch_id), Some(&*watch));
                        }
                        ResponseTarget::Refused { watch } => {
                            let id = wanted.iter().find(|(_, name)| **name == watch);
                            let id = id.map(|(id, _)| *id);
                            prop_assert!(id.is_some_and(|id| !server.contains_key(&id)));
                            wanted.remove(&id.expect("checked"));
                        }
                        ResponseTarget::Canceled { id, watch, send_cancel } => {
                            prop_assert_eq!(wanted.remove(&id), Some(watch));
                            prop_assert!(send_cancel);
                            if server.remove(&id).is_some() {
                                queue.push_back(canceled(id));
                            }
                        }
                        ResponseTarget::Ignored => {}
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
            }
            remaining = remaining.saturating_sub(1);
        }
        prop_assert_eq!(pairing.len(), wanted.len());
        prop_assert_eq!(pairing.in_flight(), 0);
        prop_assert!(pairing.canceling.is_empty() && pairing.unknown_ids.is_empty());
        let mut resumed: Vec<u32> = pairing.into_watches().collect();
        resumed.sort_unstable();
        prop_assert_eq!(resumed, wanted.into_values().collect::<Vec<_>>());
    }
}
