//! Deleting keys.

use std::time::Duration;

use super::{IntoBytes, KeyValue, ResponseHeader};
use crate::{
    error::Result,
    proto::{DeleteRangeRequest, DeleteRangeResponse, rpc},
    request::{
        ClientHandle,
        key_range::{KeyRange, key_range_methods},
        macros::{from_response, request},
    },
    transport::grpc,
};

/// Deletes one key or a range of keys.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Delete<C = ()> {
    range: KeyRange,
    prev_kv: bool,
    timeout: Option<Duration>,
    client: C,
}

request!(Delete { range, prev_kv } -> DeleteResponse);

/// Creates a request that deletes a key, or with `.prefix()`, `.range(end)` or `.from_key()` several.
pub fn delete(key: impl IntoBytes) -> Delete {
    Delete {
        range: KeyRange::key(key.into_bytes()),
        prev_kv: false,
        timeout: None,
        client: (),
    }
}

key_range_methods!(<C> Delete<C>);

impl<C> Delete<C> {
    /// Returns the deleted keys and values in the response. Default: not returned.
    pub fn prev_kv(mut self) -> Self {
        self.prev_kv = true;
        self
    }

    /// Returns the message that is sent to etcd. Fails if the request is not valid. Useful for actors that replace
    /// `Etcd` in tests.
    pub fn wire(&self) -> Result<DeleteRangeRequest> {
        let (key, range_end) = self.range.resolve()?;
        Ok(DeleteRangeRequest {
            key,
            range_end,
            prev_kv: self.prev_kv,
        })
    }

    async fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> Result<DeleteResponse> {
        let mut wire = self
            .wire()
            .map_err(|error| error.with_rpc(rpc::DELETE_RANGE))?;
        client.view().add_prefix(&mut wire);
        let body = grpc::encode(&wire)?;
        let mut response: DeleteRangeResponse = client
            .caller()
            .unary(rpc::DELETE_RANGE, body, timeout)
            .await?;
        client.view().accept(&mut response);
        response.try_into()
    }
}

/// The response to a [`Delete`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeleteResponse {
    /// Cluster and member that responded, and the revision of the deletion.
    pub header: ResponseHeader,
    /// Number of deleted keys.
    pub deleted: i64,
    /// The deleted keys and values, if requested with [`Delete::prev_kv`].
    pub prev_kvs: Vec<KeyValue>,
}

from_response!(DeleteResponse requires header: DeleteRangeResponse => deleted, prev_kvs);
