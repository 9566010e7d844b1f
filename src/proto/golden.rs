//! Compares encoded messages with bytes derived by hand from the protobuf encoding and etcd's field numbers.
//!
//! `tests/codegen.rs` checks that the code matches `proto/`. These tests check that both match the wire format.

use bytes::Bytes;
use prost::Message;

use super::*;

/// -1 as a varint: ten bytes, since protobuf sign-extends to 64 bits.
const MINUS_ONE: [u8; 10] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

/// Asserts that the message encodes to `wire` and that `wire` decodes to the message.
fn assert_wire<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, wire: &[u8]) {
    assert_eq!(message.encode_to_vec(), wire, "{message:?}");
    let decoded = M::decode(wire).expect("the expected bytes decode");
    assert_eq!(&decoded, message);
}

#[test]
fn range_request_omits_unset_fields() {
    assert_wire(
        &RangeRequest {
            key: "a".into(),
            limit: 5,
            ..Default::default()
        },
        &[0x0a, 1, b'a', 0x18, 5],
    );
}

#[test]
fn range_request_options_have_their_field_numbers() {
    assert_wire(
        &RangeRequest {
            key: "a".into(),
            range_end: "b".into(),
            limit: 1,
            revision: 2,
            sort_order: range_request::SortOrder::Descend.into(),
            sort_target: range_request::SortTarget::Value.into(),
            serializable: true,
            keys_only: true,
            count_only: true,
            min_mod_revision: 3,
            max_mod_revision: 4,
            min_create_revision: 5,
            max_create_revision: 6,
        },
        &[
            0x0a, 1, b'a', 0x12, 1, b'b', 0x18, 1, 0x20, 2, 0x28, 2, 0x30, 4, 0x38, 1, 0x40, 1,
            0x48, 1, 0x50, 3, 0x58, 4, 0x60, 5, 0x68, 6,
        ],
    );
}

#[test]
fn compare_encodes_zero_target_and_range_end() {
    // Version 0 means "does not exist", so this zero must not be omitted.
    assert_wire(
        &Compare {
            key: "k".into(),
            target_union: Some(compare::TargetUnion::Version(0)),
            ..Default::default()
        },
        &[0x1a, 1, b'k', 0x20, 0],
    );
    assert_wire(
        &Compare {
            result: compare::CompareResult::NotEqual.into(),
            target: compare::CompareTarget::Lease.into(),
            key: "k".into(),
            range_end: "l".into(),
            target_union: Some(compare::TargetUnion::Lease(5)),
        },
        &[
            0x08, 3, 0x10, 4, 0x1a, 1, b'k', 0x40, 5, 0x82, 0x04, 1, b'l',
        ],
    );
}

#[test]
fn transactions_can_be_nested() {
    let inner = TxnRequest {
        failure: vec![RequestOp {
            request: Some(request_op::Request::RequestDeleteRange(
                DeleteRangeRequest {
                    key: "k".into(),
                    ..Default::default()
                },
            )),
        }],
        ..Default::default()
    };
    assert_wire(
        &TxnRequest {
            success: vec![RequestOp {
                request: Some(request_op::Request::RequestTxn(inner)),
            }],
            ..Default::default()
        },
        &[0x12, 9, 0x22, 7, 0x1a, 5, 0x1a, 3, 0x0a, 1, b'k'],
    );
}

#[test]
fn watch_request_kinds_have_their_field_numbers() {
    use watch_request::RequestUnion;

    let request = |union| WatchRequest {
        request_union: Some(union),
    };
    let mut create = vec![0x0a, 21, 0x0a, 1, b'k', 0x18, 7, 0x2a, 1, 1, 0x38];
    create.extend(MINUS_ONE);
    create.extend([0x40, 1]);
    assert_wire(
        &request(RequestUnion::CreateRequest(WatchCreateRequest {
            key: "k".into(),
            start_revision: 7,
            filters: vec![watch_create_request::FilterType::Nodelete.into()],
            watch_id: -1,
            fragment: true,
            ..Default::default()
        })),
        &create,
    );
    assert_wire(
        &request(RequestUnion::CancelRequest(WatchCancelRequest {
            watch_id: 300,
        })),
        &[0x12, 3, 0x08, 0xac, 0x02],
    );
    assert_wire(
        &request(RequestUnion::ProgressRequest(WatchProgressRequest {})),
        &[0x1a, 0],
    );
}

#[test]
fn rejected_watch_has_negative_id_and_reason() {
    let mut wire = vec![0x10];
    wire.extend(MINUS_ONE);
    wire.extend([0x18, 1, 0x20, 1, 0x28, 9, 0x32, 2, b'n', b'o']);
    assert_wire(
        &WatchResponse {
            watch_id: -1,
            created: true,
            canceled: true,
            compact_revision: 9,
            cancel_reason: "no".into(),
            ..Default::default()
        },
        &wire,
    );
}

#[test]
fn watch_events_have_field_number_11() {
    let deleted = Event {
        r#type: event::EventType::Delete.into(),
        kv: Some(KeyValue {
            key: "k".into(),
            mod_revision: 9,
            ..Default::default()
        }),
        prev_kv: None,
    };
    assert_wire(
        &WatchResponse {
            fragment: true,
            events: vec![deleted],
            ..Default::default()
        },
        &[0x38, 1, 0x5a, 9, 0x08, 1, 0x12, 5, 0x0a, 1, b'k', 0x18, 9],
    );
}

#[test]
fn status_contains_fields_of_etcd_3_6() {
    assert_wire(
        &StatusResponse {
            storage_version: "3.6".into(),
            db_size_quota: 2,
            downgrade_info: Some(DowngradeInfo {
                enabled: true,
                target_version: "3.5".into(),
            }),
            ..Default::default()
        },
        &[
            0x5a, 3, b'3', b'.', b'6', 0x60, 2, 0x6a, 7, 0x08, 1, 0x12, 3, b'3', b'.', b'5',
        ],
    );
}

#[test]
fn lease_id_numbers_differ_in_request_and_response() {
    assert_wire(&LeaseKeepAliveRequest { id: 7 }, &[0x08, 7]);
    assert_wire(
        &LeaseKeepAliveResponse {
            header: None,
            id: 7,
            ttl: 10,
        },
        &[0x10, 7, 0x18, 10],
    );
    assert_wire(&LeaseGrantRequest { ttl: 10, id: 7 }, &[0x08, 10, 0x10, 7]);
}

#[test]
fn decoded_values_share_the_received_buffer() {
    let buffer = Bytes::from(
        KeyValue {
            key: "key".into(),
            value: "value".into(),
            ..Default::default()
        }
        .encode_to_vec(),
    );
    let decoded = KeyValue::decode(buffer.clone()).expect("an encoded message decodes");
    assert!(buffer.as_ptr_range().contains(&decoded.key.as_ptr()));
    assert!(buffer.as_ptr_range().contains(&decoded.value.as_ptr()));
}
