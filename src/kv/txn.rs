//! Transactions.

use std::time::Duration;

use super::{
    Compare, Delete, DeleteResponse, Get, GetResponse, Put, PutResponse, ResponseHeader,
    split_rejection::{check_read_revisions, split_rejection, writes},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    proto::{self, RequestOp, TxnRequest, request_op, response_op, rpc, rpc::RpcClass},
    request::{ClientHandle, macros::request, required_header},
    transport::grpc,
};

/// Checks conditions and applies one of two lists of operations, atomically at one revision.
///
/// A transaction that writes must not read at a [revision](Get::revision), except in a nested transaction: etcd before
/// 3.7 would apply it on some members only if that revision is compacted or in the future. It is not sent. Read at the
/// revision in a separate request; the result is the same.
///
/// If etcd denies permission for a transaction with writes and reads, its [outcome](Error::outcome) is unknown: if only
/// a read was denied, etcd before 3.7 applied the writes on the members that did not receive the request.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Txn<C = ()> {
    conditions: Vec<Compare>,
    success: Vec<Op>,
    failure: Vec<Op>,
    timeout: Option<Duration>,
    client: C,
}

request!(Txn { conditions, success, failure } -> TxnResponse);

/// Creates an empty transaction.
pub fn txn() -> Txn {
    Txn {
        conditions: Vec::new(),
        success: Vec::new(),
        failure: Vec::new(),
        timeout: None,
        client: (),
    }
}

impl<C> Txn<C> {
    /// Adds a condition, an array or a `Vec` of conditions. All must hold. Default: none, which always holds.
    pub fn when(mut self, conditions: impl IntoConditions) -> Self {
        conditions.append_to(&mut self.conditions);
        self
    }

    /// Adds operations that are applied if all conditions hold: one operation, an array or a `Vec` of one kind, or a
    /// tuple of different kinds, such as `(put("a", "1"), delete("b"))`. Default: none.
    pub fn then(mut self, ops: impl IntoOps) -> Self {
        ops.append_to(&mut self.success);
        self
    }

    /// Adds operations that are applied if a condition does not hold. Accepts the same types as [`then`](Self::then).
    /// Default: none.
    pub fn otherwise(mut self, ops: impl IntoOps) -> Self {
        ops.append_to(&mut self.failure);
        self
    }

    /// Returns the message that is sent to etcd. Fails if the request is not valid. Useful for actors that replace
    /// `Etcd` in tests.
    pub fn wire(&self) -> Result<TxnRequest> {
        let ops = |ops: &[Op]| {
            ops.iter()
                .map(|op| op.0.clone())
                .collect::<Result<Vec<_>>>()
        };
        Ok(TxnRequest {
            compare: self
                .conditions
                .iter()
                .map(Compare::wire)
                .collect::<Result<_>>()?,
            success: ops(&self.success)?,
            failure: ops(&self.failure)?,
        })
    }

    /// Returns the conditions, and the operations of both branches.
    pub(crate) fn into_branches(self) -> (Vec<Compare>, Vec<Op>, Vec<Op>) {
        (self.conditions, self.success, self.failure)
    }

    async fn perform(self, client: &impl ClientHandle, timeout: Duration) -> Result<TxnResponse> {
        let mut wire = self.wire().map_err(|error| error.with_rpc(rpc::TXN))?;
        check_read_revisions(&wire).map_err(|error| error.with_rpc(rpc::TXN))?;
        let rpc = if is_read_only(&wire) {
            rpc::TXN.with_class(RpcClass::Read)
        } else {
            rpc::TXN.with_split_rejection(split_rejection(&wire))
        };
        let (caller, view) = (client.caller(), client.view());
        view.add_prefix(&mut wire);
        let body = grpc::encode(&wire)?;
        let mut response: proto::TxnResponse = match view.order() {
            // Only reads are sent again because of a stale response.
            Some(order) if !rpc.is_write() => {
                let read = order.read::<TxnRequest, _>(caller, rpc, body, timeout);
                Box::pin(read).await?
            }
            Some(_) | None => caller.unary(rpc, body, timeout).await?,
        };
        view.accept(&mut response);
        response.try_into()
    }
}

fn is_read_only(txn: &TxnRequest) -> bool {
    !txn.success.iter().chain(&txn.failure).any(writes)
}

/// One operation of a transaction, created `From` a [`Put`], [`Get`], [`Delete`] or nested [`Txn`].
#[derive(Debug, Clone)]
pub struct Op(Result<RequestOp>);

/// One or several conditions of a transaction: a [`Compare`], or an array or a `Vec` of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a condition of a transaction",
    note = "pass `Compare::version(\"k\").eq(0)` or an array of such conditions"
)]
pub trait IntoConditions {
    #[doc(hidden)]
    fn append_to(self, conditions: &mut Vec<Compare>);
}

impl IntoConditions for Compare {
    fn append_to(self, conditions: &mut Vec<Compare>) {
        conditions.push(self);
    }
}

impl<I: IntoIterator<Item = Compare>> IntoConditions for I {
    fn append_to(self, conditions: &mut Vec<Compare>) {
        conditions.extend(self);
    }
}

/// One or several operations of a transaction: a request, an array or a `Vec` of one kind of requests, or a tuple of
/// different kinds.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operation of a transaction",
    note = "pass `put`, `get`, `delete` or `txn` requests: one, an array of one kind, or a tuple of several kinds"
)]
pub trait IntoOps {
    #[doc(hidden)]
    fn append_to(self, ops: &mut Vec<Op>);
}

impl<T: Into<Op>, const N: usize> IntoOps for [T; N] {
    fn append_to(self, ops: &mut Vec<Op>) {
        ops.extend(self.into_iter().map(Into::into));
    }
}

impl<T: Into<Op>> IntoOps for Vec<T> {
    fn append_to(self, ops: &mut Vec<Op>) {
        ops.extend(self.into_iter().map(Into::into));
    }
}

impl IntoOps for Op {
    fn append_to(self, ops: &mut Vec<Op>) {
        ops.push(self);
    }
}

macro_rules! tuples_of_ops {
    ($(($($item:ident)+))*) => {
        $(impl<$($item: Into<Op>),+> IntoOps for ($($item,)+) {
            fn append_to(self, ops: &mut Vec<Op>) {
                #[expect(non_snake_case, reason = "the items are named after their types")]
                let ($($item,)+) = self;
                $(ops.push($item.into());)+
            }
        })*
    };
}

tuples_of_ops! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H)
}

macro_rules! op {
    ($request:ident, $variant:ident) => {
        impl<C> From<$request<C>> for Op {
            fn from(request: $request<C>) -> Self {
                Self(request.wire().map(|wire| RequestOp {
                    request: Some(request_op::Request::$variant(wire)),
                }))
            }
        }

        impl<C> IntoOps for $request<C> {
            fn append_to(self, ops: &mut Vec<Op>) {
                ops.push(self.into());
            }
        }
    };
}

op!(Put, RequestPut);
op!(Get, RequestRange);
op!(Delete, RequestDeleteRange);
op!(Txn, RequestTxn);

/// The response to a [`Txn`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TxnResponse {
    /// Cluster and member that responded, and the revision of the transaction.
    pub header: ResponseHeader,
    /// Whether all conditions held.
    pub succeeded: bool,
    /// The responses of the applied operations, in their order.
    pub responses: Vec<OpResponse>,
}

/// The response of one operation of a transaction.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum OpResponse {
    /// Response to a [`Get`].
    Get(GetResponse),
    /// Response to a [`Put`].
    Put(PutResponse),
    /// Response to a [`Delete`].
    Delete(DeleteResponse),
    /// Response to a nested [`Txn`].
    Txn(TxnResponse),
}

impl TryFrom<proto::TxnResponse> for TxnResponse {
    type Error = Error;

    fn try_from(response: proto::TxnResponse) -> Result<Self> {
        let header = required_header(response.header)?;
        let responses = response
            .responses
            .into_iter()
            .map(|op| op_response(op, &header));
        Ok(Self {
            responses: responses.collect::<Result<_>>()?,
            succeeded: response.succeeded,
            header,
        })
    }
}

/// Converts the response of one operation. etcd omits or shortens its header, so the transaction's header replaces it.
fn op_response(op: proto::ResponseOp, header: &ResponseHeader) -> Result<OpResponse> {
    use response_op::Response;
    match op.response {
        Some(Response::ResponseRange(mut response)) => {
            response.header = Some(*header);
            Ok(OpResponse::Get(response.try_into()?))
        }
        Some(Response::ResponsePut(mut response)) => {
            response.header = Some(*header);
            Ok(OpResponse::Put(response.try_into()?))
        }
        Some(Response::ResponseDeleteRange(mut response)) => {
            response.header = Some(*header);
            Ok(OpResponse::Delete(response.try_into()?))
        }
        Some(Response::ResponseTxn(mut response)) => {
            response.header = Some(*header);
            Ok(OpResponse::Txn(response.try_into()?))
        }
        None => Err(Error::new(
            ErrorKind::Protocol,
            Outcome::Unknown,
            "the response to an operation of the transaction is missing",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{delete, get, put};
    use super::*;

    #[test]
    fn only_transaction_without_writes_is_read_only() {
        let reads = txn()
            .when([Compare::version("k").eq(0)])
            .then([get("a")])
            .otherwise([get("b")]);
        assert!(is_read_only(&reads.wire().unwrap()));
        let nested = txn().then([txn().otherwise([reads.clone()])]);
        assert!(is_read_only(&nested.wire().unwrap()));
        let nested_write = txn().then([txn().otherwise([delete("a")])]);
        assert!(!is_read_only(&nested_write.wire().unwrap()));
        assert!(!is_read_only(
            &reads.otherwise([put("a", "b")]).wire().unwrap()
        ));
    }

    #[test]
    fn invalid_operation_invalidates_the_transaction() {
        let invalid = txn().then([txn().then([put("", "v")])]);
        assert_eq!(invalid.wire().unwrap_err().kind(), ErrorKind::EmptyKey);
    }

    #[test]
    fn conditions_and_operations_accept_one_or_several() {
        let several = txn()
            .when([Compare::version("k").eq(0), Compare::lease("k").eq(0)])
            .then((put("a", "1"), get("b"), delete("c")))
            .otherwise(vec![get("a"), get("b")]);
        let wire = several.wire().unwrap();
        assert_eq!(
            (wire.compare.len(), wire.success.len(), wire.failure.len()),
            (2, 3, 2)
        );
        let single = txn()
            .when(Compare::version("k").eq(0))
            .then(put("a", "1"))
            .otherwise(txn());
        let wire = single.wire().unwrap();
        assert_eq!(
            (wire.compare.len(), wire.success.len(), wire.failure.len()),
            (1, 1, 1)
        );
    }
}
