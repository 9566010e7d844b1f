//! Writes that would change the markers themselves.

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    proto::{TxnRequest, request_op::Request},
};

/// Fails if a transaction puts or deletes keys under the prefix of the markers: it would delete the proof that it was
/// applied.
pub(super) fn check_markers_untouched(txn: &TxnRequest, prefix: &[u8]) -> Result<()> {
    for op in txn.success.iter().chain(&txn.failure) {
        let touched = match &op.request {
            Some(Request::RequestPut(put)) => includes(prefix, &put.key, &Bytes::new()),
            Some(Request::RequestDeleteRange(delete)) => {
                includes(prefix, &delete.key, &delete.range_end)
            }
            Some(Request::RequestTxn(nested)) => {
                check_markers_untouched(nested, prefix)?;
                false
            }
            Some(Request::RequestRange(_)) | None => false,
        };
        if touched {
            return Err(Error::invalid(format!(
                "a write that is applied exactly once must not change keys under `{}`, where the client keeps its \
                 markers; exclude them, or choose another prefix with `ClientBuilder::marker_prefix`",
                prefix.escape_ascii()
            )));
        }
    }
    Ok(())
}

/// Returns whether a range, as etcd encodes it, includes a key that starts with the prefix.
fn includes(prefix: &[u8], key: &[u8], range_end: &[u8]) -> bool {
    let starts_before_end = key < prefix || key.starts_with(prefix);
    match range_end {
        [] => key.starts_with(prefix),
        [0] => starts_before_end,
        end => starts_before_end && end > prefix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{delete, put, txn};

    fn is_refused(txn: &crate::kv::Txn) -> bool {
        check_markers_untouched(&txn.wire().unwrap(), b"m/").is_err()
    }

    #[test]
    fn writes_under_the_prefix_are_refused() {
        assert!(is_refused(&txn().then(put("m/1", "v"))));
        assert!(is_refused(&txn().otherwise(delete("m/1"))));
        assert!(is_refused(&txn().then(delete("m").prefix())));
        assert!(is_refused(&txn().then(delete("").from_key())));
        assert!(is_refused(&txn().then(delete("a").range("m/1"))));
        assert!(is_refused(&txn().then(delete("m/9").range("z"))));
        assert!(is_refused(&txn().then(txn().then(delete("m/").prefix()))));
    }

    #[test]
    fn other_writes_are_allowed() {
        assert!(!is_refused(&txn().then(put("m", "v"))));
        assert!(!is_refused(&txn().then(delete("a").range("m/"))));
        assert!(!is_refused(&txn().then(delete("n").from_key())));
        assert!(!is_refused(&txn().then(delete("m0").prefix())));
    }
}
