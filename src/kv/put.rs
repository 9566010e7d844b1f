//! Writing a key.

use std::time::Duration;

use super::{IntoBytes, KeyValue, ResponseHeader};
use crate::{
    error::{Error, Result},
    proto::{self, PutRequest, rpc},
    request::{
        ClientHandle,
        key_range::KeyRange,
        macros::{from_response, request},
    },
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

/// Creates a request that writes a key.
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
    /// Attaches the key to a lease: etcd deletes the key when the lease ends. Default: no lease.
    pub fn lease(mut self, lease: impl Into<i64>) -> Self {
        self.wire.lease = lease.into();
        self
    }

    /// Returns the previous key and value in the response. Default: not returned.
    pub fn prev_kv(mut self) -> Self {
        self.wire.prev_kv = true;
        self
    }

    /// Keeps the current value, for example to change only the lease. The value of the request must be empty.
    /// Default: the value is replaced.
    pub fn ignore_value(mut self) -> Self {
        self.wire.ignore_value = true;
        self
    }

    /// Keeps the current lease. The request must have none. Default: the lease is replaced.
    pub fn ignore_lease(mut self) -> Self {
        self.wire.ignore_lease = true;
        self
    }

    /// Returns the message that is sent to etcd. Fails if the request is not valid. Useful for actors that replace
    /// `Etcd` in tests.
    pub fn wire(&self) -> Result<PutRequest> {
        KeyRange::key(self.wire.key.clone()).resolve()?;
        if self.wire.ignore_value && !self.wire.value.is_empty() {
            return Err(Error::invalid("`ignore_value` requires an empty value"));
        }
        if self.wire.ignore_lease && self.wire.lease != 0 {
            return Err(Error::invalid(
                "`ignore_lease` requires a request without a lease",
            ));
        }
        Ok(self.wire.clone())
    }

    async fn perform(self, client: &impl ClientHandle, timeout: Duration) -> Result<PutResponse> {
        let mut wire = self.wire().map_err(|error| error.with_rpc(rpc::PUT))?;
        client.view().add_prefix(&mut wire);
        let body = grpc::encode(&wire)?;
        let mut response: proto::PutResponse =
            client.caller().unary(rpc::PUT, body, timeout).await?;
        client.view().accept(&mut response);
        response.try_into()
    }
}

/// The response to a [`Put`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PutResponse {
    /// Cluster and member that responded, and the revision of the write.
    pub header: ResponseHeader,
    /// The previous key and value, if requested with [`Put::prev_kv`] and the key existed.
    pub prev_kv: Option<KeyValue>,
}

from_response!(PutResponse requires header: proto::PutResponse => prev_kv);
