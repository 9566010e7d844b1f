use proptest::prelude::*;

use super::*;

/// The answer as it is in a frame: between others.
fn append(answer: &[u8], watch_id: i64, events: &mut Vec<Event>) -> bool {
    let frame = Bytes::from([b"before", answer, b"after"].concat());
    super::append(&frame, 6..6 + answer.len(), watch_id, events)
}

fn read(answer: &[u8]) -> Option<WatchResponse> {
    super::read(&Bytes::copy_from_slice(answer), 3)
}

fn kvs() -> impl Strategy<Value = KeyValue> {
    let numbers = prop_oneof![Just(0), 1..300_i64, any::<i64>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    (bytes.clone(), bytes, prop::array::uniform4(numbers)).prop_map(|(key, value, numbers)| {
        KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: numbers[0],
            mod_revision: numbers[1],
            version: numbers[2],
            lease: numbers[3],
        }
    })
}

fn answers() -> impl Strategy<Value = WatchResponse> {
    let event =
        (prop::option::of(kvs()), prop::option::of(kvs()), 0..3).prop_map(|(kv, prev_kv, kind)| {
            Event {
                kv,
                prev_kv: prev_kv.map(Box::new),
                r#type: kind,
            }
        });
    let rare = |flag: u8| flag == 0;
    (
        prop::collection::vec(event, 0..5),
        0..3_i64,
        prop::array::uniform4(0..20_u8),
        any::<bool>(),
    )
        .prop_map(move |(events, watch_id, flags, header)| WatchResponse {
            header: header.then_some(ResponseHeader {
                cluster_id: u64::MAX,
                member_id: 1,
                revision: 9,
                raft_term: 2,
            }),
            watch_id,
            created: rare(flags[0]),
            canceled: rare(flags[1]),
            compact_revision: i64::from(rare(flags[2])),
            fragment: rare(flags[3]),
            events,
            ..WatchResponse::default()
        })
}

proptest! {
    #[test]
    fn what_is_appended_is_what_the_generated_code_reads(answer in answers(), before in 0..2_usize) {
        let encoded = answer.encode_to_vec();
        let known = vec![Event::default(); before];
        let mut events = known.clone();
        let plain = !(answer.created || answer.canceled || answer.fragment)
            && answer.compact_revision == 0
            && answer.cancel_reason.is_empty();
        if append(&encoded, 1, &mut events) {
            prop_assert!(plain && answer.watch_id == 1);
            prop_assert_eq!(events, [known, answer.events].concat());
        } else {
            prop_assert_eq!(events, known);
        }
    }

    #[test]
    fn what_is_read_is_what_the_generated_code_reads(answer in answers()) {
        if let Some(read) = read(&answer.encode_to_vec()) {
            prop_assert_eq!(read, answer);
        }
    }

    #[test]
    fn no_message_makes_it_fail(message in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut events = Vec::new();
        if append(&message, 1, &mut events) {
            let read = WatchResponse::decode(&message[..]).unwrap();
            prop_assert_eq!(read.events, events);
        }
        if let Some(read) = read(&message) {
            prop_assert_eq!(WatchResponse::decode(&message[..]).unwrap(), read);
        }
    }
}

#[test]
fn the_usual_answer_is_read_here() {
    let event = Event {
        kv: Some(KeyValue {
            key: "k".into(),
            value: "v".repeat(300).into(),
            create_revision: 5,
            mod_revision: 1 << 40,
            version: 1,
            lease: i64::MAX,
        }),
        ..Event::default()
    };
    let answer = WatchResponse {
        header: Some(ResponseHeader {
            cluster_id: u64::MAX,
            member_id: 1 << 63,
            revision: 1 << 40,
            raft_term: 3,
        }),
        watch_id: 7,
        events: vec![event; 3],
        ..WatchResponse::default()
    };
    let mut events = Vec::new();
    assert!(append(&answer.encode_to_vec(), 7, &mut events));
    assert_eq!(events, answer.events);
    assert_eq!(read(&answer.encode_to_vec()), Some(answer.clone()));
    assert!(!append(&answer.encode_to_vec(), 8, &mut events));
}

#[test]
fn an_answer_whose_header_is_none_is_not_appended() {
    let answer = WatchResponse {
        watch_id: 7,
        events: vec![Event::default()],
        ..WatchResponse::default()
    };
    // A length that goes beyond the header.
    let broken = [&[0x0a, 2, 0x0a, 9], &answer.encode_to_vec()[..]].concat();
    assert!(WatchResponse::decode(&broken[..]).is_err());
    assert!(!append(&broken, 7, &mut Vec::new()));
    assert_eq!(read(&broken), None);
}

#[test]
fn the_beginning_of_an_answer_says_whom_it_is_for() {
    let answer = WatchResponse {
        header: Some(ResponseHeader {
            revision: 5,
            ..ResponseHeader::default()
        }),
        watch_id: 300,
        events: vec![Event::default(); 3],
        ..WatchResponse::default()
    };
    let whole = Bytes::from(answer.encode_to_vec());
    assert_eq!(addressee(&whole), Some(300));
    for length in 0..whole.len() {
        let told = addressee(&whole.slice(..length));
        assert!(told.is_none_or(|id| id == 300), "after {length} bytes");
    }
}
