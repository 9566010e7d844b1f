//! The health service of members (`grpc.health.v1`).

use crate::{
    call::WireResponse,
    error::{Error, Result},
    proto::{
        ResponseHeader,
        health::{HealthCheckRequest, HealthCheckResponse},
        rpc,
    },
    request::{ClientHandle, MemberRequest, ResponseStream},
    transport::Endpoint,
};

pub use crate::proto::health::health_check_response::ServingStatus;

impl WireResponse for HealthCheckResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        None
    }
}

/// Requests of the health service, made by [`Client::health`](crate::Client::health).
#[derive(Debug, Clone)]
pub struct Health<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> Health {
    Health(())
}

impl<C> Health<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> Health<C> {
    /// Returns whether a member serves requests.
    pub fn check(&self) -> MemberRequest<HealthReport, C> {
        let request = HealthCheckRequest::default();
        MemberRequest::new::<HealthCheckResponse>(&self.0, rpc::HEALTH_CHECK, &request)
    }
}

impl<C: ClientHandle> Health<C> {
    /// Streams whether this member serves requests: its current state and every change. The stream ends with an error
    /// if the member fails.
    pub async fn watch(&self, endpoint: impl AsRef<str>) -> Result<ResponseStream<HealthReport>> {
        let endpoint = Endpoint::parse(endpoint.as_ref())?;
        let request = HealthCheckRequest::default();
        ResponseStream::open::<_, HealthCheckResponse>(
            &self.0,
            rpc::HEALTH_WATCH,
            request,
            Some(endpoint),
        )
        .await
    }
}

/// The health of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthReport {
    /// Status that the member reports.
    pub status: ServingStatus,
}

impl HealthReport {
    /// Whether the member serves requests.
    pub fn is_serving(&self) -> bool {
        self.status == ServingStatus::Serving
    }
}

impl TryFrom<HealthCheckResponse> for HealthReport {
    type Error = Error;

    fn try_from(response: HealthCheckResponse) -> Result<Self> {
        Ok(Self {
            status: response.status(),
        })
    }
}
