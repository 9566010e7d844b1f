//! Writing a key.

use std::time::Duration;

use super::{IntoBytes, KeyValue, ResponseHeader, header};
use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{self, PutRequest},
    request::{key_range::Span, request},
    retry::RpcClass,
    transport::grpc,
};

/// Writes a key.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Put<C = ()> {
    wire: PutRequest,
    timeout: Option<Duration>,
    client: C,
}

request!(Put { wire } -> PutResponse);

/// A request that writes a key.
pub fn put(key: impl IntoBytes, value: impl IntoBytes) -> Put {
    Put {
        wire: PutRequest {
            key: key.into_bytes(),
            value: value.into_bytes(),
            ..PutRequest::default()
        },
        timeout: None,
        client: (),
    }
}

impl<C> Put<C> {
    /// Binds the key to a lease: it is deleted when the lease ends. Default: none.
    pub fn lease(mut self, lease: impl Into<i64>) -> Self {
        self.wire.lease = lease.into();
        self
    }

    /// The answer tells what was there before.
    pub fn prev_kv(mut self) -> Self {
        self.wire.prev_kv = true;
        self
    }

    /// Keeps the value as it is, say to change the lease only; the value given must be empty.
    pub fn ignore_value(mut self) -> Self {
        self.wire.ignore_value = true;
        self
    }

    /// Keeps the lease as it is; none must be given.
    pub fn ignore_lease(mut self) -> Self {
        self.wire.ignore_lease = true;
        self
    }

    /// The message as it goes to etcd; fails where the request is not valid. For actors that stand in for etcd in tests.
    pub fn wire(&self) -> Result<PutRequest> {
        Span::key(self.wire.key.clone()).resolve()?;
        if self.wire.ignore_value && !self.wire.value.is_empty() {
            return Err(Error::invalid(
                "`ignore_value` is said, and a value is given",
            ));
        }
        if self.wire.ignore_lease && self.wire.lease != 0 {
            return Err(Error::invalid(
                "`ignore_lease` is said, and a lease is given",
            ));
        }
        Ok(self.wire.clone())
    }

    async fn perform(self, client: &Client, timeout: Duration) -> Result<PutResponse> {
        let wire = self.wire()?;
        let rpc = Rpc {
            path: "/etcdserverpb.KV/Put",
            class: RpcClass::Mutation,
            leaderless: false,
            waits: false,
        };
        let answer: proto::PutResponse = client
            .caller()
            .unary(rpc, grpc::encode(&wire)?, timeout)
            .await?;
        answer.try_into()
    }
}

/// What a [`Put`] did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PutResponse {
    /// The revision of the write, and who answered.
    pub header: ResponseHeader,
    /// What was there before, where it was asked for and there was anything.
    pub prev_kv: Option<KeyValue>,
}

impl TryFrom<proto::PutResponse> for PutResponse {
    type Error = Error;

    fn try_from(answer: proto::PutResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            prev_kv: answer.prev_kv,
        })
    }
}
