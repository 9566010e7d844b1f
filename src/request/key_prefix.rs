//! Translates the keys of messages between a namespace and the key space of the cluster.
//!
//! A namespace is a prefix: requests get it before they are sent, responses lose it before the application reads them.
//! The end of a range is translated so that the range stays inside: "no end" becomes the end of the namespace. A key
//! without the prefix, which etcd never sends for such a range, is removed from the response.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::key_range::after_prefix;
use crate::proto::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, Event, KeyValue, LeaseTimeToLiveResponse,
    PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest,
    TxnResponse, request_op::Request, response_op::Response,
};

/// The prefix of all keys of a namespace; not empty.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyPrefix(Bytes);

/// A request whose keys can be those of a namespace.
pub(crate) trait KeyedRequest {
    /// Adds the prefix to every key. Ranges stay inside the namespace.
    fn add_prefix(&mut self, prefix: &KeyPrefix);
}

/// A response, or a part of one, that contains keys.
pub(crate) trait KeyedResponse {
    /// Removes the prefix from every key.
    fn remove_prefix(&mut self, prefix: &KeyPrefix);
}

impl KeyPrefix {
    pub(crate) fn new(prefix: Bytes) -> Self {
        Self(prefix)
    }

    /// Returns the prefix of a namespace inside of this one.
    pub(crate) fn nested(&self, inner: &[u8]) -> Self {
        Self(self.before(inner))
    }

    pub(crate) fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    fn before(&self, key: &[u8]) -> Bytes {
        let mut joined = BytesMut::with_capacity(self.0.len() + key.len());
        joined.put_slice(&self.0);
        joined.put_slice(key);
        joined.freeze()
    }

    /// Adds the prefix to a key.
    pub(crate) fn add(&self, key: &mut Bytes) {
        *key = self.before(key);
    }

    /// Adds the prefix to a key and to the end of the range that starts there.
    pub(crate) fn add_to_range(&self, key: &mut Bytes, range_end: &mut Bytes) {
        self.add(key);
        match range_end[..] {
            // A single key.
            [] => {}
            // No end.
            [0] => *range_end = after_prefix(&self.0),
            _ => self.add(range_end),
        }
    }

    /// Removes the prefix from a key. Returns `false` if the key is outside of the namespace.
    pub(crate) fn remove(&self, key: &mut Bytes) -> bool {
        let inside = key.starts_with(&self.0);
        if inside {
            key.advance(self.0.len());
        }
        inside
    }

    fn remove_from_all(&self, kvs: &mut Vec<KeyValue>) {
        kvs.retain_mut(|kv| self.remove(&mut kv.key));
    }
}

macro_rules! ranges {
    ($($request:ty),*) => {
        $(impl KeyedRequest for $request {
            fn add_prefix(&mut self, prefix: &KeyPrefix) {
                prefix.add_to_range(&mut self.key, &mut self.range_end);
            }
        })*
    };
}

ranges!(RangeRequest, DeleteRangeRequest, Compare);

impl KeyedRequest for PutRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.add(&mut self.key);
    }
}

impl KeyedRequest for TxnRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        for compare in &mut self.compare {
            compare.add_prefix(prefix);
        }
        for op in self.success.iter_mut().chain(&mut self.failure) {
            op.add_prefix(prefix);
        }
    }
}

impl KeyedRequest for RequestOp {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        match &mut self.request {
            Some(Request::RequestRange(range)) => range.add_prefix(prefix),
            Some(Request::RequestPut(put)) => put.add_prefix(prefix),
            Some(Request::RequestDeleteRange(delete)) => delete.add_prefix(prefix),
            Some(Request::RequestTxn(txn)) => txn.add_prefix(prefix),
            None => {}
        }
    }
}

impl KeyedResponse for RangeResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.remove_from_all(&mut self.kvs);
    }
}

impl KeyedResponse for PutResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        self.prev_kv.remove_prefix(prefix);
    }
}

impl KeyedResponse for DeleteRangeResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.remove_from_all(&mut self.prev_kvs);
    }
}

impl KeyedResponse for TxnResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        for op in &mut self.responses {
            op.remove_prefix(prefix);
        }
    }
}

impl KeyedResponse for ResponseOp {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        match &mut self.response {
            Some(Response::ResponseRange(range)) => range.remove_prefix(prefix),
            Some(Response::ResponsePut(put)) => put.remove_prefix(prefix),
            Some(Response::ResponseDeleteRange(delete)) => delete.remove_prefix(prefix),
            Some(Response::ResponseTxn(txn)) => txn.remove_prefix(prefix),
            None => {}
        }
    }
}

/// A lease can be bound to keys outside of the namespace as well.
impl KeyedResponse for LeaseTimeToLiveResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        self.keys.remove_prefix(prefix);
    }
}

impl KeyedResponse for Vec<Bytes> {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        self.retain_mut(|key| prefix.remove(key));
    }
}

impl KeyedResponse for Option<KeyValue> {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        self.take_if(|kv| !prefix.remove(&mut kv.key));
    }
}

impl KeyedResponse for Vec<KeyValue> {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.remove_from_all(self);
    }
}

impl KeyedResponse for Vec<Event> {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        self.retain_mut(|event| {
            if let Some(previous) = &mut event.prev_kv {
                prefix.remove(&mut previous.key);
            }
            let kv = event.kv.as_mut();
            kv.is_some_and(|kv| prefix.remove(&mut kv.key))
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::{Compare as Condition, delete, get, put, txn};

    fn prefix() -> KeyPrefix {
        KeyPrefix::new(Bytes::from_static(b"t/"))
    }

    fn in_namespace(key: &'static str, range_end: &'static str) -> (Bytes, Bytes) {
        let (mut key, mut end) = (Bytes::from(key), Bytes::from(range_end));
        prefix().add_to_range(&mut key, &mut end);
        (key, end)
    }

    #[test]
    fn ranges_end_inside_namespace() {
        assert_eq!(in_namespace("k", ""), ("t/k".into(), "".into()));
        assert_eq!(in_namespace("a", "c"), ("t/a".into(), "t/c".into()));
        assert_eq!(in_namespace("k", "\0"), ("t/k".into(), "t0".into()));
        // All keys.
        assert_eq!(in_namespace("\0", "\0"), ("t/\0".into(), "t0".into()));
    }

    #[test]
    fn namespace_of_highest_bytes_has_no_end() {
        let highest = KeyPrefix::new(Bytes::from_static(b"\xff\xff"));
        let (mut key, mut end) = (Bytes::from("k"), Bytes::from("\0"));
        highest.add_to_range(&mut key, &mut end);
        assert_eq!((&key[..], &end[..]), (&b"\xff\xffk"[..], &b"\0"[..]));
    }

    #[test]
    fn nested_namespaces_are_concatenated() {
        let nested = prefix().nested(b"u/");
        let mut key = Bytes::from("k");
        nested.add(&mut key);
        assert_eq!(key, "t/u/k");
        assert!(nested.remove(&mut key));
        assert_eq!(key, "k");
    }

    #[test]
    fn every_key_of_a_transaction_is_translated() {
        let operations = |prefix: &str| {
            let key = |key: &str| format!("{prefix}{key}");
            txn()
                .when([
                    Condition::version(key("a")).eq(0),
                    Condition::value(key("b/")).eq("t/").range(key("c")),
                ])
                .then((put(key("d"), "t/"), delete(key("e")).range(key("f"))))
                .otherwise(txn().then(get(key("g"))).otherwise(delete(key("h"))))
        };
        let mut translated = operations("").wire().unwrap();
        translated.add_prefix(&prefix());
        assert_eq!(translated, operations("t/").wire().unwrap());
    }

    #[test]
    fn every_key_of_a_response_is_translated() {
        let kv = |key: &'static str| KeyValue {
            key: key.into(),
            value: "t/".into(),
            ..KeyValue::default()
        };
        let op = |response| ResponseOp {
            response: Some(response),
        };
        let response = |a, b, c| TxnResponse {
            responses: vec![
                op(Response::ResponseRange(RangeResponse {
                    kvs: vec![kv(a)],
                    ..RangeResponse::default()
                })),
                op(Response::ResponsePut(PutResponse {
                    prev_kv: Some(kv(b)),
                    ..PutResponse::default()
                })),
                op(Response::ResponseTxn(TxnResponse {
                    responses: vec![op(Response::ResponseDeleteRange(DeleteRangeResponse {
                        prev_kvs: vec![kv(c)],
                        ..DeleteRangeResponse::default()
                    }))],
                    ..TxnResponse::default()
                })),
            ],
            ..TxnResponse::default()
        };
        let mut translated = response("t/a", "t/b", "t/c");
        translated.remove_prefix(&prefix());
        assert_eq!(translated, response("a", "b", "c"));
    }

    #[test]
    fn keys_outside_are_removed_from_responses() {
        let mut keys: Vec<Bytes> = ["t/a", "t", "u/a", "T/a", ""].map(Bytes::from).into();
        keys.remove_prefix(&prefix());
        assert_eq!(keys, ["a"]);
    }

    fn bytes(length: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
        // Few values, so that keys share prefixes, with the lowest and the highest.
        let byte = prop::sample::select(vec![0, 1, b'/', b'a', 0xfe, 0xff]);
        prop::collection::vec(byte, length).prop_map(Bytes::from)
    }

    /// Returns whether etcd's range, as encoded in requests, contains a key.
    fn contains(range: &(Bytes, Bytes), key: &[u8]) -> bool {
        match &range.1[..] {
            [] => key == range.0,
            [0] => key >= &range.0[..],
            end => key >= &range.0[..] && key < end,
        }
    }

    proptest! {
        #[test]
        fn removal_reverses_addition(namespace in bytes(1..4), key in bytes(0..4)) {
            let prefix = KeyPrefix::new(namespace);
            let mut translated = key.clone();
            prefix.add(&mut translated);
            prop_assert!(prefix.remove(&mut translated));
            prop_assert_eq!(translated, key);
        }

        /// A translated range contains the same keys of the namespace as the range itself, and none outside.
        #[test]
        fn translated_range_contains_same_keys_and_none_outside(
            namespace in bytes(1..4),
            range in (bytes(1..4), bytes(0..4)),
            inside in bytes(1..4),
            outside in bytes(1..6),
        ) {
            let prefix = KeyPrefix::new(namespace.clone());
            let mut translated = range.clone();
            prefix.add_to_range(&mut translated.0, &mut translated.1);
            let mut key = inside.clone();
            prefix.add(&mut key);
            prop_assert_eq!(contains(&translated, &key), contains(&range, &inside));
            if !outside.starts_with(&namespace) {
                prop_assert!(!contains(&translated, &outside));
            }
        }
    }
}
