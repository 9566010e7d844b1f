//! The transaction of a write with its fences and its marker, and its response.

use super::{
    fence::Fences,
    marker_slot::{Ending, MarkerSlot},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::{OpResponse, Txn, TxnResponse, txn},
    proto::{TxnRequest, request_op::Request},
};

/// A write, and how it is nested:
/// 1. Under the condition of its slot, the transaction with the fences; without fences, the next level.
/// 2. Under the condition of the fences, the write; without a need for a level of its own, its operations.
///
/// The marker of the ending is part of the innermost level. Reads are always nested: from a transaction that is not
/// nested, etcd before 3.7 removes them on some members, see [`Txn`].
pub(super) struct MarkedTxn<'a> {
    txn: &'a Txn,
    fences: &'a Fences,
    /// Whether the write is a nested transaction.
    is_nested: bool,
    uses_lease: bool,
}

impl<'a> MarkedTxn<'a> {
    pub(super) fn new(txn: &'a Txn, fences: &'a Fences) -> Self {
        let wire = txn.wire().unwrap_or_default();
        let is_read =
            |op: &crate::proto::RequestOp| matches!(op.request, Some(Request::RequestRange(_)));
        Self {
            txn,
            fences,
            is_nested: !wire.compare.is_empty() || wire.success.iter().any(is_read),
            uses_lease: uses_lease(&wire),
        }
    }

    /// Returns whether the write attaches a key to a lease.
    pub(super) fn uses_lease(&self) -> bool {
        self.uses_lease
    }

    /// Returns the transaction that is sent with a marker.
    pub(super) fn with_marker(&self, slot: &MarkerSlot) -> Txn {
        let outer = txn().when(slot.condition());
        if self.fences.is_empty() {
            return self.add_write(outer, slot);
        }
        let fenced = self.add_write(txn().when(self.fences.conditions()), slot);
        outer.then(fenced.otherwise(slot.end(Ending::Fenced)))
    }

    fn add_write(&self, outer: Txn, slot: &MarkerSlot) -> Txn {
        let (conditions, then, otherwise) = self.txn.clone().into_branches();
        let end = |ending| slot.end(ending);
        if !self.is_nested {
            return outer.then(end(Ending::Then)).then(then);
        }
        let write = txn().when(conditions).then(end(Ending::Then)).then(then);
        outer.then(write.otherwise(end(Ending::Otherwise)).otherwise(otherwise))
    }

    /// Returns the transaction that is sent without a marker.
    pub(super) fn without_marker(&self) -> Txn {
        if self.fences.is_empty() {
            return self.txn.clone();
        }
        txn().when(self.fences.conditions()).then(self.txn.clone())
    }

    /// Returns the ending, and the response without the parts that belong to the marker and the fences.
    pub(super) fn unwrap(&self, mut response: TxnResponse) -> Result<(Ending, TxnResponse)> {
        if !self.fences.is_empty() {
            response = nested(response)?;
            if !response.succeeded {
                return Ok((Ending::Fenced, response));
            }
        }
        if self.is_nested {
            response = nested(response)?;
        }
        if response.responses.is_empty() {
            return Err(unexpected_response());
        }
        response.responses.remove(0);
        let ending = if response.succeeded {
            Ending::Then
        } else {
            Ending::Otherwise
        };
        Ok((ending, response))
    }

    /// Returns the response to a transaction without a marker, or `None` if the fences did not hold.
    pub(super) fn unwrap_unmarked(&self, response: TxnResponse) -> Result<Option<TxnResponse>> {
        if self.fences.is_empty() {
            return Ok(Some(response));
        }
        if !response.succeeded {
            return Ok(None);
        }
        nested(response).map(Some)
    }
}

fn uses_lease(txn: &TxnRequest) -> bool {
    let mut ops = txn.success.iter().chain(&txn.failure);
    ops.any(|op| match &op.request {
        Some(Request::RequestPut(put)) => put.lease != 0,
        Some(Request::RequestTxn(nested)) => uses_lease(nested),
        _ => false,
    })
}

/// Returns the response of the only operation of a transaction, which is a transaction.
fn nested(response: TxnResponse) -> Result<TxnResponse> {
    match response.responses.into_iter().next() {
        Some(OpResponse::Txn(nested)) => Ok(nested),
        _ => Err(unexpected_response()),
    }
}

fn unexpected_response() -> Error {
    let reason = "the response of the transaction does not match its operations";
    Error::new(ErrorKind::Protocol, Outcome::Unknown, reason)
}
