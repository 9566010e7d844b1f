use proptest::prelude::*;

use super::*;
use crate::proto::{KeyValue, key_value_decoder::tests::key_values};

/// Appends a response that lies between others in a frame.
fn append(response: &[u8], watch_id: i64, events: &mut Vec<Event>) -> bool {
    let frame = Bytes::from([b"before", response, b"after"].concat());
    super::append_events(&frame, 6..6 + response.len(), watch_id, events)
}

fn decode(response: &[u8]) -> Option<WatchResponse> {
    super::decode_events(&Bytes::copy_from_slice(response), 3)
}

fn kvs() -> impl Strategy<Value = KeyValue> {
    key_values(prop_oneof![Just(0), 1..300_i64, any::<i64>()])
}

fn responses() -> impl Strategy<Value = WatchResponse> {
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
    fn appended_events_match_generated_decoder(response in responses(), before in 0..2_usize) {
        let encoded = response.encode_to_vec();
        let existing = vec![Event::default(); before];
        let mut events = existing.clone();
        let plain = !(response.created || response.canceled || response.fragment)
            && response.compact_revision == 0
            && response.cancel_reason.is_empty();
        if append(&encoded, 1, &mut events) {
            prop_assert!(plain && response.watch_id == 1);
            prop_assert_eq!(events, [existing, response.events].concat());
        } else {
            prop_assert_eq!(events, existing);
        }
    }

    #[test]
    fn decoded_response_matches_generated_decoder(response in responses()) {
        if let Some(decoded) = decode(&response.encode_to_vec()) {
            prop_assert_eq!(decoded, response);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(message in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut events = Vec::new();
        if append(&message, 1, &mut events) {
            let decoded = WatchResponse::decode(&message[..]).unwrap();
            prop_assert_eq!(decoded.events, events);
        }
        if let Some(decoded) = decode(&message) {
            prop_assert_eq!(WatchResponse::decode(&message[..]).unwrap(), decoded);
        }
    }
}

#[test]
fn typical_event_response_is_decoded() {
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
    let response = WatchResponse {
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
    assert!(append(&response.encode_to_vec(), 7, &mut events));
    assert_eq!(events, response.events);
    assert_eq!(decode(&response.encode_to_vec()), Some(response.clone()));
    assert!(!append(&response.encode_to_vec(), 8, &mut events));
}

#[test]
fn response_with_malformed_header_is_not_appended() {
    let response = WatchResponse {
        watch_id: 7,
        events: vec![Event::default()],
        ..WatchResponse::default()
    };
    // A field length that exceeds the header.
    let malformed = [&[0x0a, 2, 0x0a, 9], &response.encode_to_vec()[..]].concat();
    assert!(WatchResponse::decode(&malformed[..]).is_err());
    assert!(!append(&malformed, 7, &mut Vec::new()));
    assert_eq!(decode(&malformed), None);
}

#[test]
fn watch_id_is_decoded_from_partial_response() {
    // Proxies use the id 0, which is not encoded.
    for watch_id in [300, 0] {
        let response = WatchResponse {
            header: Some(ResponseHeader {
                revision: 5,
                ..ResponseHeader::default()
            }),
            watch_id,
            events: vec![Event::default(); 3],
            ..WatchResponse::default()
        };
        let whole = Bytes::from(response.encode_to_vec());
        assert_eq!(decode_watch_id(&whole), Some(watch_id));
        for length in 0..whole.len() {
            let decoded = decode_watch_id(&whole.slice(..length));
            assert!(
                decoded.is_none_or(|id| id == watch_id),
                "after {length} bytes"
            );
        }
    }
}
