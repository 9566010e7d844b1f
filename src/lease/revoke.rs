//! Ending a lease by its id.

use std::time::Duration;

use crate::{
    call::Caller,
    error::Result,
    proto::{LeaseRevokeRequest, LeaseRevokeResponse, ResponseHeader, rpc},
    request::{ClientHandle, macros::request},
    transport::grpc,
};

/// Ends a lease.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Revoke<C = ()> {
    id: i64,
    timeout: Option<Duration>,
    client: C,
}

request!(Revoke { id } -> RevokeResponse);

/// A request that ends a lease; its keys are deleted. Fails with
/// [`ErrorKind::LeaseNotFound`](crate::ErrorKind::LeaseNotFound) if there is no such lease.
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
        let answer = send(client.caller(), self.id, timeout).await?;
        Ok(answer.into())
    }

    /// Which lease is to end.
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

/// What a [`Revoke`] did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RevokeResponse {
    /// The current revision, and who answered; none if an earlier attempt did it whose answer was lost.
    pub header: Option<ResponseHeader>,
}

impl From<LeaseRevokeResponse> for RevokeResponse {
    fn from(answer: LeaseRevokeResponse) -> Self {
        Self {
            header: answer.header,
        }
    }
}
