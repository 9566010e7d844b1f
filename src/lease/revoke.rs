//! Revokes a lease by its id.

use std::time::Duration;

use crate::{
    call::Caller,
    error::Result,
    proto::{LeaseRevokeRequest, LeaseRevokeResponse, ResponseHeader, rpc},
    request::{ClientHandle, macros::request},
    transport::grpc,
};

/// Revokes a lease.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Revoke<C = ()> {
    id: i64,
    timeout: Option<Duration>,
    client: C,
}

request!(Revoke { id } -> RevokeResponse);

/// Creates a request that revokes a lease and so deletes its keys. Fails with
/// [`ErrorKind::LeaseNotFound`](crate::ErrorKind::LeaseNotFound) if the lease does not exist.
pub fn revoke(lease: impl Into<i64>) -> Revoke {
    Revoke {
        id: lease.into(),
        timeout: None,
        client: (),
    }
}

impl<C> Revoke<C> {
    async fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> Result<RevokeResponse> {
        let response = send(client.caller(), self.id, timeout).await?;
        Ok(response.into())
    }

    /// Returns the id of the lease.
    pub fn lease(&self) -> i64 {
        self.id
    }
}

pub(crate) async fn send(
    caller: &Caller,
    id: i64,
    timeout: Duration,
) -> Result<LeaseRevokeResponse> {
    let body = grpc::encode(&LeaseRevokeRequest { id })?;
    caller.unary(rpc::LEASE_REVOKE, body, timeout).await
}

/// Response to a [`Revoke`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RevokeResponse {
    /// Header of the response. `None` if an earlier attempt revoked the lease and its response was lost.
    pub header: Option<ResponseHeader>,
}

impl From<LeaseRevokeResponse> for RevokeResponse {
    fn from(response: LeaseRevokeResponse) -> Self {
        Self {
            header: response.header,
        }
    }
}
