//! Transactions that one member rejects while other members apply them.
//!
//! etcd before 3.7 removes the reads of a transaction on all members except the one that received the request; nested
//! transactions stay as they are. If only a read fails, that member rejects the whole transaction, and the other
//! members apply its writes: from then on, the members have different data. Conditions, puts, deletes and nested reads
//! are checked on every member before anything is applied.
//!
//! A read fails if its revision is compacted or in the future, or if the user may not read the keys. The first reason
//! is avoided: such a transaction is not sent. The second is known only to the cluster; the outcome of a transaction
//! that was rejected for it is unknown.

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    proto::{
        Compare, RangeRequest, RequestOp, TxnRequest, request_op::Request, rpc::SplitRejection,
    },
};

/// Returns an error if a compacted or future revision of a read would make etcd apply only parts of the transaction.
pub(super) fn check_read_revisions(txn: &TxnRequest) -> Result<()> {
    let reads_at_revision = |op: &RequestOp| matches!(&op.request, Some(Request::RequestRange(read)) if read.revision != 0);
    let unsafe_branch =
        |ops: &[RequestOp]| ops.iter().any(reads_at_revision) && ops.iter().any(writes);
    if unsafe_branch(&txn.success) || unsafe_branch(&txn.failure) {
        return Err(Error::invalid(
            "a transaction that writes must not read at a revision, because etcd before 3.7 applies its writes on some \
             members only if the revision is compacted or in the future; read at the revision in a separate request",
        ));
    }
    Ok(())
}

/// Returns which rejections of the transaction do not prove that no member applied it.
pub(super) fn split_rejection(txn: &TxnRequest) -> SplitRejection {
    let ops = || txn.success.iter().chain(&txn.failure);
    // A user without permission for the read has none for the condition: every member rejects the transaction.
    let unchecked = |read: &RangeRequest| !txn.compare.iter().any(|compare| covers(compare, read));
    let has_unchecked_read =
        ops().any(|op| matches!(&op.request, Some(Request::RequestRange(read)) if unchecked(read)));
    if !has_unchecked_read || !ops().any(writes) {
        return SplitRejection::None;
    }
    // Releases that do not check the permissions of nested transactions check their user nowhere else.
    let is_nested = |op: &RequestOp| matches!(op.request, Some(Request::RequestTxn(_)));
    if txn.compare.is_empty() && !ops().any(|op| writes(op) && !is_nested(op)) {
        return SplitRejection::UserOrPermission;
    }
    SplitRejection::Permission
}

/// Returns whether the operation, or an operation of a nested transaction, can change a key.
pub(super) fn writes(op: &RequestOp) -> bool {
    match &op.request {
        Some(Request::RequestRange(_)) | None => false,
        Some(Request::RequestTxn(nested)) => {
            nested.success.iter().chain(&nested.failure).any(writes)
        }
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => true,
    }
}

/// Returns whether the keys of the condition include all keys of the read.
fn covers(compare: &Compare, read: &RangeRequest) -> bool {
    let (outer, inner) = (
        interval(&compare.key, &compare.range_end),
        interval(&read.key, &read.range_end),
    );
    let ends_later = match (&outer.1, &inner.1) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => outer >= inner,
    };
    outer.0 <= inner.0 && ends_later
}

/// Returns the first key and the end of a range; `None` is the end of all keys.
fn interval(key: &Bytes, range_end: &Bytes) -> (Vec<u8>, Option<Vec<u8>>) {
    let end = match &range_end[..] {
        [] => Some([key, &b"\0"[..]].concat()),
        [0] => None,
        end => Some(end.to_vec()),
    };
    (key.to_vec(), end)
}

#[cfg(test)]
mod tests {
    use super::super::{Compare, Txn, delete, get, put, txn};
    use super::*;

    fn is_sent(txn: &Txn) -> bool {
        check_read_revisions(&txn.wire().unwrap()).is_ok()
    }

    fn split(txn: &Txn) -> SplitRejection {
        split_rejection(&txn.wire().unwrap())
    }

    #[test]
    fn write_with_read_at_revision_is_refused() {
        let read = || get("b").revision(7);
        assert!(!is_sent(&txn().then((put("a", "1"), read()))));
        assert!(!is_sent(&txn().otherwise((read(), delete("a")))));
        assert!(!is_sent(
            &txn().then((txn().otherwise(put("a", "1")), read()))
        ));
        assert!(is_sent(&txn().then((put("a", "1"), get("b")))));
        assert!(is_sent(&txn().then((read(), get("a")))));
        assert!(is_sent(&txn().then(put("a", "1")).otherwise(read())));
        assert!(is_sent(&txn().then((put("a", "1"), txn().then(read())))));
    }

    #[test]
    fn denied_read_of_a_write_is_split() {
        assert_eq!(
            split(&txn().then((put("a", "1"), get("b")))),
            SplitRejection::Permission
        );
        assert_eq!(
            split(&txn().then(put("a", "1")).otherwise(get("b"))),
            SplitRejection::Permission
        );
        let nested_write = txn().then((txn().then(put("a", "1")), get("b")));
        assert_eq!(split(&nested_write), SplitRejection::UserOrPermission);
        let nested_write = nested_write.when(Compare::version("a").eq(0));
        assert_eq!(split(&nested_write), SplitRejection::Permission);
        assert_eq!(
            split(&txn().then((put("a", "1"), put("b", "1")))),
            SplitRejection::None
        );
        assert_eq!(
            split(&txn().then((get("a"), get("b")))),
            SplitRejection::None
        );
        assert_eq!(
            split(&txn().then((put("a", "1"), txn().then(get("b"))))),
            SplitRejection::None
        );
    }

    #[test]
    fn read_covered_by_condition_is_not_split() {
        let with = |condition| {
            split(
                &txn()
                    .when(condition)
                    .then(put("a", "1"))
                    .otherwise(get("k/1")),
            )
        };
        assert_eq!(with(Compare::version("k/1").eq(0)), SplitRejection::None);
        assert_eq!(
            with(Compare::version("k/").eq(0).prefix()),
            SplitRejection::None
        );
        assert_eq!(
            with(Compare::version("k").eq(0).from_key()),
            SplitRejection::None
        );
        assert_eq!(
            with(Compare::version("k/").eq(0)),
            SplitRejection::Permission
        );
        assert_eq!(
            with(Compare::version("k/").eq(0).range("k/1")),
            SplitRejection::Permission
        );
    }
}
