//! Puts, deletes and transactions that are applied exactly once.

use std::time::Duration;

use actix::Message;

use super::{
    MarkedWrite, MarkingClient,
    fence::{Fence, Fences},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Delete, DeleteResponse, OpResponse, Put, PutResponse, Txn, TxnResponse, txn},
    proto::rpc::{self, Rpc},
    request::{EtcdRequest, ResponseFuture},
};

/// A put, a delete or a transaction that is applied exactly once. Created by `exactly_once()` of these requests.
/// Without a client (`ExactlyOnce<Put>`), it is a message to the actor [`Etcd`](crate::Etcd).
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct ExactlyOnce<W, C = ()> {
    write: W,
    fences: Fences,
    timeout: Option<Duration>,
    client: C,
}

/// The result of a write that was applied exactly once.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Applied<R> {
    /// The revision of the write.
    pub revision: i64,
    /// Whether the conditions of a transaction held. `true` for a put or a delete.
    pub succeeded: bool,
    /// The response; `None` if it was lost and only the marker shows that the write was applied.
    pub response: Option<R>,
}

/// A request that can be applied exactly once: [`Put`], [`Delete`] or [`Txn`].
pub trait ExactlyOnceWrite: Clone + Send + 'static {
    /// The response of the request.
    type Response: Send + 'static;

    #[doc(hidden)]
    const NAME: &'static str;

    #[doc(hidden)]
    const KIND: WriteKind;

    #[doc(hidden)]
    fn into_txn(self) -> Txn;

    #[doc(hidden)]
    fn response(txn: TxnResponse) -> Result<Self::Response>;
}

/// A kind of request, which its errors name.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub enum WriteKind {
    Put,
    Delete,
    Txn,
}

impl WriteKind {
    fn rpc(self) -> Rpc {
        match self {
            Self::Put => rpc::PUT,
            Self::Delete => rpc::DELETE_RANGE,
            Self::Txn => rpc::TXN,
        }
    }
}

macro_rules! exactly_once {
    ($request:ident) => {
        impl<C> $request<C> {
            /// Applies the write exactly once, or surely not: an unknown outcome is found out by a marker. See
            /// [`layers::exactly_once`](crate::layers::exactly_once).
            pub fn exactly_once(self) -> ExactlyOnce<$request, C> {
                let (write, timeout, client) = self.into_parts();
                ExactlyOnce {
                    write,
                    fences: Fences::default(),
                    timeout,
                    client,
                }
            }
        }
    };
}

exactly_once!(Put);
exactly_once!(Delete);
exactly_once!(Txn);

impl<W, C> ExactlyOnce<W, C> {
    /// Applies the write only while this lock or leadership is held. Otherwise it fails with [`ErrorKind::LockLost`],
    /// and nothing is written. Can be called several times. Default: no such condition.
    pub fn fenced_by(mut self, fence: &impl Fence) -> Self {
        self.fences.add(fence);
        self
    }

    /// Longest time until the write is applied or its outcome is found out. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<W> ExactlyOnce<W> {
    /// Binds the request to a client: awaiting it sends it.
    pub fn on<C: MarkingClient>(self, client: &C) -> ExactlyOnce<W, C> {
        ExactlyOnce {
            write: self.write,
            fences: self.fences,
            timeout: self.timeout,
            client: client.clone(),
        }
    }
}

impl<W: ExactlyOnceWrite, Client: MarkingClient> IntoFuture for ExactlyOnce<W, Client> {
    type Output = Result<Applied<W::Response>>;
    type IntoFuture = ResponseFuture<Applied<W::Response>>;

    fn into_future(self) -> Self::IntoFuture {
        let timeout = self.timeout.unwrap_or(self.client.request_timeout());
        let write = MarkedWrite {
            rpc: W::KIND.rpc(),
            txn: self.write.into_txn(),
            fences: self.fences,
        };
        let client = self.client;
        Box::pin(async move {
            let applied = write.send(client.marking_client(), timeout).await?;
            Ok(Applied {
                revision: applied.revision,
                succeeded: applied.succeeded,
                response: applied.response.map(W::response).transpose()?,
            })
        })
    }
}

impl<W: ExactlyOnceWrite> Message for ExactlyOnce<W> {
    type Result = Result<Applied<W::Response>>;
}

impl<W: ExactlyOnceWrite, C: MarkingClient> EtcdRequest<C> for ExactlyOnce<W> {
    type Response = Applied<W::Response>;

    fn name(&self) -> &'static str {
        W::NAME
    }

    fn send_with(self, client: &C) -> ResponseFuture<Self::Response> {
        self.on(client).into_future()
    }
}

impl ExactlyOnceWrite for Put {
    type Response = PutResponse;

    const NAME: &'static str = "ExactlyOnce<Put>";
    const KIND: WriteKind = WriteKind::Put;

    fn into_txn(self) -> Txn {
        txn().then(self)
    }

    fn response(txn: TxnResponse) -> Result<PutResponse> {
        match txn.responses.into_iter().next() {
            Some(OpResponse::Put(response)) => Ok(response),
            _ => Err(unexpected_operation()),
        }
    }
}

impl ExactlyOnceWrite for Delete {
    type Response = DeleteResponse;

    const NAME: &'static str = "ExactlyOnce<Delete>";
    const KIND: WriteKind = WriteKind::Delete;

    fn into_txn(self) -> Txn {
        txn().then(self)
    }

    fn response(txn: TxnResponse) -> Result<DeleteResponse> {
        match txn.responses.into_iter().next() {
            Some(OpResponse::Delete(response)) => Ok(response),
            _ => Err(unexpected_operation()),
        }
    }
}

impl ExactlyOnceWrite for Txn {
    type Response = TxnResponse;

    const NAME: &'static str = "ExactlyOnce<Txn>";
    const KIND: WriteKind = WriteKind::Txn;

    fn into_txn(self) -> Txn {
        self
    }

    fn response(txn: TxnResponse) -> Result<TxnResponse> {
        Ok(txn)
    }
}

fn unexpected_operation() -> Error {
    let reason = "the response of the transaction has another operation than its request";
    Error::new(ErrorKind::Protocol, Outcome::Unknown, reason)
}
