//! Deleting keys.

use std::time::Duration;

use super::{IntoBytes, KeyValue, ResponseHeader, header};
use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{DeleteRangeRequest, DeleteRangeResponse},
    request::{
        key_range::{Span, spans},
        request,
    },
    retry::RpcClass,
    transport::grpc,
};

/// Deletes one key, or many.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Delete<C = ()> {
    span: Span,
    prev_kv: bool,
    timeout: Option<Duration>,
    client: C,
}

request!(Delete { span, prev_kv } -> DeleteResponse);

/// A request that deletes a key, or with `.prefix()`, `.range(end)` or `.from_key()` many.
pub fn delete(key: impl IntoBytes) -> Delete {
    Delete {
        span: Span::key(key.into_bytes()),
        prev_kv: false,
        timeout: None,
        client: (),
    }
}

spans!(<C> Delete<C>);

impl<C> Delete<C> {
    /// The answer tells what was deleted.
    pub fn prev_kv(mut self) -> Self {
        self.prev_kv = true;
        self
    }

    /// The message as it goes to etcd; fails where the request is not valid. For actors that stand in for etcd in tests.
    pub fn wire(&self) -> Result<DeleteRangeRequest> {
        let (key, range_end) = self.span.resolve()?;
        Ok(DeleteRangeRequest {
            key,
            range_end,
            prev_kv: self.prev_kv,
        })
    }

    async fn perform(self, client: &Client, timeout: Duration) -> Result<DeleteResponse> {
        let wire = self.wire()?;
        let rpc = Rpc {
            path: "/etcdserverpb.KV/DeleteRange",
            class: RpcClass::Mutation,
            leaderless: false,
            waits: false,
        };
        let answer: DeleteRangeResponse = client
            .caller()
            .unary(rpc, grpc::encode(&wire)?, timeout)
            .await?;
        answer.try_into()
    }
}

/// What a [`Delete`] did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeleteResponse {
    /// The revision of the deletion, and who answered.
    pub header: ResponseHeader,
    /// How many keys were deleted.
    pub deleted: i64,
    /// What was deleted, where it was asked for.
    pub prev_kvs: Vec<KeyValue>,
}

impl TryFrom<DeleteRangeResponse> for DeleteResponse {
    type Error = Error;

    fn try_from(answer: DeleteRangeResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            deleted: answer.deleted,
            prev_kvs: answer.prev_kvs,
        })
    }
}
