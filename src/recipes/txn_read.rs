//! Reads the key that a transaction returned.

use crate::kv::{KeyValue, OpResponse, TxnResponse};

/// Returns the first key of the response's first operation, if that is a get that found a key.
pub(super) fn first_key(response: &TxnResponse) -> Option<&KeyValue> {
    match response.responses.first() {
        Some(OpResponse::Get(found)) => found.first(),
        _ => None,
    }
}
