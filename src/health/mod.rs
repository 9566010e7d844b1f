//! What a member's health service says (`grpc.health.v1`).

use crate::{
    call::{Answer, Rpc},
    client::Client,
    error::{Error, Result},
    proto::{
        ResponseHeader,
        health::{HealthCheckRequest, HealthCheckResponse},
    },
    request::{MemberRequest, ResponseStream},
    retry::RpcClass,
    transport::Endpoint,
};

pub use crate::proto::health::health_check_response::ServingStatus;

impl Answer for HealthCheckResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        None
    }
}

/// What the members' health services say; see [`Client::health`].
#[derive(Debug, Clone)]
pub struct Health<C = Client>(C);

impl Client {
    /// What the members' health services say.
    pub fn health(&self) -> Health {
        Health(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> Health<()> {
    Health(())
}

impl<C: Clone> Health<C> {
    /// Whether a member serves now.
    pub fn check(&self) -> MemberRequest<Serving, C> {
        let rpc = Rpc {
            path: "/grpc.health.v1.Health/Check",
            class: RpcClass::Read,
            leaderless: true,
            waits: false,
        };
        let request = HealthCheckRequest::default();
        MemberRequest::new::<HealthCheckResponse>(&self.0, rpc, &request)
    }
}

impl Health {
    /// Whether this member serves, now and at every change. The stream ends with an error if the member fails.
    pub async fn watch(&self, endpoint: impl AsRef<str>) -> Result<ResponseStream<Serving>> {
        let endpoint = Endpoint::parse(endpoint.as_ref())?;
        let request = HealthCheckRequest::default();
        ResponseStream::open::<_, HealthCheckResponse>(
            &self.0,
            "/grpc.health.v1.Health/Watch",
            request,
            Some(endpoint),
        )
        .await
    }
}

/// Whether a member serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Serving {
    /// What it says.
    pub status: ServingStatus,
}

impl Serving {
    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        self.status == ServingStatus::Serving
    }
}

impl TryFrom<HealthCheckResponse> for Serving {
    type Error = Error;

    fn try_from(answer: HealthCheckResponse) -> Result<Self> {
        Ok(Self {
            status: answer.status(),
        })
    }
}
