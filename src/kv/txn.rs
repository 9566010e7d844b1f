//! Transactions.

use std::time::Duration;

use super::{
    Compare, Delete, DeleteResponse, Get, GetResponse, Put, PutResponse, ResponseHeader, header,
};
use crate::{
    call::Rpc,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    proto::{self, RequestOp, TxnRequest, request_op, response_op},
    request::request,
    retry::RpcClass,
    transport::grpc,
};

/// Compares, then does one thing or another, all at one revision.
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

/// A transaction: conditions, what to do if all hold, what to do otherwise.
pub fn txn() -> Txn {
    Txn {
        conditions: Vec::new(),
        success: Vec::new(),
        failure: Vec::new(),
        timeout: None,
        client: (),
    }
}

/// A request inside of a transaction: made from a [`Put`], [`Get`], [`Delete`] or another [`Txn`].
#[derive(Debug, Clone)]
pub struct Op(Result<RequestOp>);

impl<C> Txn<C> {
    /// Conditions that must all hold; more can be added by saying it again. Default: none, which always holds.
    pub fn when(mut self, conditions: impl IntoIterator<Item = Compare>) -> Self {
        self.conditions.extend(conditions);
        self
    }

    /// What is done if the conditions hold. Requests of different kinds are added by saying it again, or with `.into()`.
    pub fn then(mut self, ops: impl IntoIterator<Item = impl Into<Op>>) -> Self {
        self.success.extend(ops.into_iter().map(Into::into));
        self
    }

    /// What is done otherwise. Requests of different kinds are added by saying it again, or with `.into()`.
    pub fn otherwise(mut self, ops: impl IntoIterator<Item = impl Into<Op>>) -> Self {
        self.failure.extend(ops.into_iter().map(Into::into));
        self
    }

    /// The message as it goes to etcd; fails where the request is not valid. For actors that stand in for etcd in tests.
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

    async fn perform(self, client: &Client, timeout: Duration) -> Result<TxnResponse> {
        let wire = self.wire()?;
        let rpc = Rpc {
            path: "/etcdserverpb.KV/Txn",
            class: if is_read_only(&wire) {
                RpcClass::Read
            } else {
                RpcClass::Mutation
            },
            leaderless: false,
            waits: false,
        };
        let answer: proto::TxnResponse = client
            .caller()
            .unary(rpc, grpc::encode(&wire)?, timeout)
            .await?;
        answer.try_into()
    }
}

fn is_read_only(txn: &TxnRequest) -> bool {
    txn.success
        .iter()
        .chain(&txn.failure)
        .all(|op| match &op.request {
            Some(request_op::Request::RequestRange(_)) | None => true,
            Some(request_op::Request::RequestTxn(nested)) => is_read_only(nested),
            Some(
                request_op::Request::RequestPut(_) | request_op::Request::RequestDeleteRange(_),
            ) => false,
        })
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
    };
}

op!(Put, RequestPut);
op!(Get, RequestRange);
op!(Delete, RequestDeleteRange);
op!(Txn, RequestTxn);

/// What a [`Txn`] did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TxnResponse {
    /// The revision of the transaction, and who answered.
    pub header: ResponseHeader,
    /// Whether the conditions held.
    pub succeeded: bool,
    /// The answers of what was done, in its order.
    pub responses: Vec<OpResponse>,
}

/// The answer of one request inside of a transaction.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum OpResponse {
    /// Of a [`Get`].
    Get(GetResponse),
    /// Of a [`Put`].
    Put(PutResponse),
    /// Of a [`Delete`].
    Delete(DeleteResponse),
    /// Of a nested [`Txn`].
    Txn(TxnResponse),
}

impl TryFrom<proto::TxnResponse> for TxnResponse {
    type Error = Error;

    fn try_from(answer: proto::TxnResponse) -> Result<Self> {
        let header = header(answer.header)?;
        let responses = answer
            .responses
            .into_iter()
            .map(|op| op_response(op, &header));
        Ok(Self {
            responses: responses.collect::<Result<_>>()?,
            succeeded: answer.succeeded,
            header,
        })
    }
}

/// Inside of a transaction etcd leaves headers thin or out: they are those of the whole.
fn op_response(op: proto::ResponseOp, whole: &ResponseHeader) -> Result<OpResponse> {
    use response_op::Response;
    match op.response {
        Some(Response::ResponseRange(mut answer)) => {
            answer.header = Some(*whole);
            Ok(OpResponse::Get(answer.try_into()?))
        }
        Some(Response::ResponsePut(mut answer)) => {
            answer.header = Some(*whole);
            Ok(OpResponse::Put(answer.try_into()?))
        }
        Some(Response::ResponseDeleteRange(mut answer)) => {
            answer.header = Some(*whole);
            Ok(OpResponse::Delete(answer.try_into()?))
        }
        Some(Response::ResponseTxn(mut answer)) => {
            answer.header = Some(*whole);
            Ok(OpResponse::Txn(answer.try_into()?))
        }
        None => Err(Error::new(
            ErrorKind::Protocol,
            Outcome::Unknown,
            "an answer inside of the transaction is missing",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{delete, get, put, version};
    use super::*;

    #[test]
    fn only_a_transaction_without_writes_may_be_repeated() {
        let reads = txn()
            .when([version("k").eq(0)])
            .then([get("a")])
            .otherwise([get("b")]);
        assert!(is_read_only(&reads.wire().unwrap()));
        let nested = txn().then([txn().otherwise([reads.clone()])]);
        assert!(is_read_only(&nested.wire().unwrap()));
        let hidden = txn().then([txn().otherwise([delete("a")])]);
        assert!(!is_read_only(&hidden.wire().unwrap()));
        assert!(!is_read_only(
            &reads.otherwise([put("a", "b")]).wire().unwrap()
        ));
    }

    #[test]
    fn a_bad_request_inside_makes_the_transaction_bad() {
        let bad = txn().then([txn().then([put("", "v")])]);
        assert_eq!(bad.wire().unwrap_err().kind(), ErrorKind::EmptyKey);
    }
}
