use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Answer, Creates, Envelope, MAX_STRAYS, NO_WATCH};

fn created(watch_id: i64) -> Envelope {
    Envelope {
        watch_id,
        created: true,
        revision: 10,
        ..Envelope::default()
    }
}

fn refused() -> Envelope {
    Envelope {
        watch_id: NO_WATCH,
        created: true,
        canceled: true,
        ..Envelope::default()
    }
}

fn canceled(watch_id: i64) -> Envelope {
    Envelope {
        watch_id,
        canceled: true,
        ..Envelope::default()
    }
}

fn events(watch_id: i64) -> Envelope {
    Envelope {
        watch_id,
        ..Envelope::default()
    }
}

fn live(names: &[&'static str]) -> Creates<&'static str> {
    let mut creates = Creates::default();
    for name in names {
        let id = creates.create(*name, 1);
        assert!(matches!(
            creates.answer(created(id)),
            Answer::Created { .. }
        ));
    }
    creates
}

#[test]
fn pipelined_creates_are_paired_by_id_and_a_refusal_by_order() {
    let mut creates = Creates::default();
    let ids = ["a", "b", "c"].map(|name| creates.create(name, 1));
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(
        creates.answer(created(1)),
        Answer::Created {
            id: 1,
            who: &mut "a"
        }
    );
    assert_eq!(creates.answer(refused()), Answer::Refused { who: "b" });
    assert_eq!(
        creates.answer(created(3)),
        Answer::Created {
            id: 3,
            who: &mut "c"
        }
    );
    assert_eq!(creates.answer(events(1)), Answer::For { who: &mut "a" });
    assert_eq!((creates.len(), creates.unanswered()), (2, 0));
}

#[test]
fn refusal_that_names_the_id_is_understood_too() {
    let mut creates = Creates::default();
    let id = creates.create("a", 1);
    assert_eq!(
        creates.answer(Envelope {
            watch_id: id,
            ..refused()
        }),
        Answer::Refused { who: "a" }
    );
}

#[test]
fn ids_are_never_used_twice() {
    let mut creates = live(&["a"]);
    assert_eq!(creates.cancel(1), Some("a"));
    assert_eq!(creates.answer(canceled(1)), Answer::Nobody);
    assert_eq!(creates.create("b", 1), 2);
}

#[test]
fn answers_out_of_order_give_up_the_stream() {
    let mut creates = Creates::default();
    creates.create("a", 1);
    creates.create("b", 1);
    assert_eq!(creates.answer(created(2)), Answer::OutOfStep);
    assert_eq!(
        live(&["a"]).answer(refused()),
        Answer::OutOfStep,
        "nothing was asked"
    );
    assert_eq!(live(&["a"]).answer(created(7)), Answer::OutOfStep);
    assert_eq!(
        creates.into_watches().collect::<Vec<_>>(),
        ["a", "b"],
        "none is lost"
    );
}

#[test]
fn id_chosen_by_a_proxy_is_taken_if_there_is_no_doubt() {
    let mut creates = Creates::default();
    let id = creates.create("a", 1);
    assert_eq!(
        creates.answer(created(40)),
        Answer::Created {
            id: 40,
            who: &mut "a"
        }
    );
    assert_eq!(creates.cancel(id), None);
    assert_eq!(creates.answer(events(40)), Answer::For { who: &mut "a" });
    creates.create("b", 1);
    creates.create("c", 1);
    assert_eq!(
        creates.answer(created(41)),
        Answer::Ambiguous,
        "whose is it?"
    );
    let mut creates = Creates::default();
    let id = creates.create("b", 1);
    assert_eq!(creates.cancel(id), Some("b"));
    assert_eq!(
        creates.answer(created(41)),
        Answer::Unwanted { id: 41 },
        "its cancel named another id"
    );
    assert_eq!(creates.answer(canceled(41)), Answer::Nobody);
}

#[test]
fn repeated_created_is_an_echo() {
    assert_eq!(live(&["a"]).answer(created(1)), Answer::Nobody);
}

#[test]
fn cancel_before_created_is_sent_once_and_its_answers_are_swallowed() {
    let mut creates = Creates::default();
    let id = creates.create("a", 1);
    assert_eq!(creates.cancel(id), Some("a"));
    assert_eq!(creates.cancel(id), None);
    assert_eq!((creates.len(), creates.unanswered()), (0, 1));
    assert_eq!(creates.answer(created(id)), Answer::Nobody);
    assert_eq!(creates.answer(events(id)), Answer::Nobody);
    assert_eq!(creates.answer(canceled(id)), Answer::Nobody);
    assert!(creates.closing.is_empty());
}

#[test]
fn cancel_before_a_refusal_does_not_shift_the_next_answer() {
    let mut creates = Creates::default();
    let gone = creates.create("gone", 1);
    creates.create("next", 1);
    assert_eq!(creates.cancel(gone), Some("gone"));
    assert_eq!(creates.answer(refused()), Answer::Nobody);
    assert_eq!(
        creates.answer(created(2)),
        Answer::Created {
            id: 2,
            who: &mut "next"
        }
    );
}

#[test]
fn cancel_that_crosses_the_servers_own_is_answered_once() {
    let mut creates = live(&["a"]);
    assert_eq!(
        creates.answer(canceled(1)),
        Answer::Canceled {
            id: 1,
            who: "a",
            forget: false
        }
    );
    assert_eq!(creates.cancel(1), None, "the server no longer knows it");
    let mut creates = live(&["a"]);
    assert_eq!(creates.cancel(1), Some("a"));
    assert_eq!(
        creates.answer(Envelope {
            compact_revision: 5,
            ..canceled(1)
        }),
        Answer::Nobody
    );
    assert_eq!(creates.answer(canceled(1)), Answer::Nobody);
}

#[test]
fn compacted_watch_has_to_be_forgotten_by_the_server() {
    let mut creates = live(&["a"]);
    let compacted = Envelope {
        compact_revision: 5,
        ..canceled(1)
    };
    assert_eq!(
        creates.answer(compacted),
        Answer::Canceled {
            id: 1,
            who: "a",
            forget: true
        }
    );
    assert_eq!(creates.answer(canceled(1)), Answer::Nobody);
    assert!(creates.closing.is_empty());
}

#[test]
fn unknown_id_is_cancelled_once_and_too_many_give_up_the_stream() {
    let mut creates = live(&["a"]);
    assert_eq!(creates.answer(events(99)), Answer::Unwanted { id: 99 });
    assert_eq!(creates.answer(events(99)), Answer::Nobody);
    assert_eq!(creates.answer(canceled(99)), Answer::Nobody);
    for id in (100..).take(MAX_STRAYS - 1) {
        assert_eq!(creates.answer(events(id)), Answer::Unwanted { id });
    }
    assert_eq!(creates.answer(events(5000)), Answer::OutOfStep);
}

#[test]
fn progress_asked_before_a_watch_was_created_is_not_about_it() {
    let mut creates = live(&["old"]);
    creates.progress_asked();
    let id = creates.create("new", 1);
    assert!(matches!(
        creates.answer(created(id)),
        Answer::Created { .. }
    ));
    assert_eq!(creates.answer(events(NO_WATCH)), Answer::Broadcast);
    assert_eq!(creates.broadcast(10).collect::<Vec<_>>(), [&mut "old"]);
    creates.progress_asked();
    assert_eq!(
        creates.broadcast(10).count(),
        2,
        "asked after both were there"
    );
}

#[test]
fn progress_asked_before_is_told_to_a_watch_that_it_cannot_mislead() {
    // Answers that never come would cost every later watch one that does.
    for (start, told) in [(0, 1), (11, 1), (50, 1), (10, 0), (1, 0)] {
        let mut creates = Creates::default();
        creates.progress_asked();
        let id = creates.create("a", start);
        assert!(matches!(
            creates.answer(created(id)),
            Answer::Created { .. }
        ));
        assert_eq!(creates.broadcast(10).count(), told, "from {start} on");
    }
}

#[test]
fn nothing_asked_before_is_under_way_once_the_watch_has_heard_more() {
    let mut creates = Creates::default();
    creates.progress_asked();
    let id = creates.create("a", 1);
    assert!(matches!(
        creates.answer(created(id)),
        Answer::Created { .. }
    ));
    assert_eq!(creates.answer(events(id)), Answer::For { who: &mut "a" });
    assert_eq!(creates.broadcast(10).count(), 1);
}

#[test]
fn progress_beyond_the_create_is_about_it_whoever_asked() {
    let mut creates = Creates::default();
    creates.progress_asked();
    let id = creates.create("a", 1);
    assert!(matches!(
        creates.answer(created(id)),
        Answer::Created { .. }
    ));
    assert_eq!(creates.broadcast(11).count(), 1);
}

/// A server that handles requests in order.
#[derive(Debug, Clone)]
enum Ask {
    Create { refuse: bool },
    Cancel { nth: usize },
    Compact { nth: usize },
    Listen,
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        3 => any::<bool>().prop_map(|refuse| Ask::Create { refuse }),
        1 => (0..20_usize).prop_map(|nth| Ask::Cancel { nth }),
        1 => (0..20_usize).prop_map(|nth| Ask::Compact { nth }),
        2 => Just(Ask::Listen),
    ]
}

proptest! {
    /// Whatever is in flight, every answer finds its own watch, and nothing is left behind.
    #[test]
    fn every_answer_finds_its_watch(asks in prop::collection::vec(ask(), 0..60)) {
        let mut creates = Creates::default();
        let (mut wanted, mut serial) = (BTreeMap::new(), 0_u32);
        let (mut server, mut queue) = (BTreeMap::new(), std::collections::VecDeque::new());
        let mut settle = asks.len();
        for ask in asks.into_iter().chain(std::iter::repeat_with(|| Ask::Listen)) {
            match ask {
                Ask::Create { refuse } => {
                    serial += 1;
                    let id = creates.create(serial, 1);
                    wanted.insert(id, serial);
                    if refuse {
                        queue.push_back(refused());
                    } else {
                        server.insert(id, serial);
                        queue.push_back(created(id));
                        queue.push_back(events(id));
                    }
                }
                Ask::Cancel { nth } => if let Some(&id) = wanted.keys().nth(nth) {
                    let who = wanted.remove(&id);
                    prop_assert_eq!(creates.cancel(id), who);
                    if server.remove(&id).is_some() {
                        queue.push_back(canceled(id));
                    }
                },
                Ask::Compact { nth } => if let Some(&id) = server.keys().nth(nth) {
                    queue.push_back(Envelope { compact_revision: 9, ..canceled(id) });
                },
                Ask::Listen if queue.is_empty() => {
                    if settle == 0 { break }
                }
                Ask::Listen => {
                    let envelope: Envelope = queue.pop_front().expect("not empty");
                    match creates.answer(envelope) {
                        Answer::Created { id, who } => prop_assert_eq!(wanted.get(&id), Some(&*who)),
                        Answer::For { who } => prop_assert_eq!(wanted.get(&envelope.watch_id), Some(&*who)),
                        Answer::Refused { who } => {
                            let id = wanted.iter().find(|(_, name)| **name == who).map(|(id, _)| *id);
                            prop_assert!(id.is_some_and(|id| !server.contains_key(&id)));
                            wanted.remove(&id.expect("checked"));
                        }
                        Answer::Canceled { id, who, forget } => {
                            prop_assert_eq!(wanted.remove(&id), Some(who));
                            prop_assert!(forget);
                            if server.remove(&id).is_some() {
                                queue.push_back(canceled(id));
                            }
                        }
                        Answer::Nobody => {}
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
            }
            settle = settle.saturating_sub(1);
        }
        prop_assert_eq!(creates.len(), wanted.len());
        prop_assert_eq!(creates.unanswered(), 0);
        prop_assert!(creates.closing.is_empty() && creates.strays.is_empty());
        let mut left: Vec<u32> = creates.into_watches().collect();
        left.sort_unstable();
        prop_assert_eq!(left, wanted.into_values().collect::<Vec<_>>());
    }
}
