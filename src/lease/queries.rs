//! Asking for leases: how long one has left, and which there are.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    error::Result,
    proto::{
        LeaseLeasesRequest, LeaseLeasesResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
        rpc,
    },
    request::{ClientHandle, macros::request},
    transport::grpc,
};

/// Asks how long a lease has left.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct TimeToLive<C = ()> {
    wire: LeaseTimeToLiveRequest,
    timeout: Option<Duration>,
    client: C,
}

request!(TimeToLive { wire } -> TimeToLiveResponse);

/// A request that asks how long a lease has left.
pub fn time_to_live(lease: impl Into<i64>) -> TimeToLive {
    TimeToLive {
        wire: LeaseTimeToLiveRequest {
            id: lease.into(),
            keys: false,
        },
        timeout: None,
        client: (),
    }
}

impl<C> TimeToLive<C> {
    /// The answer lists the keys bound to it.
    pub fn with_keys(mut self) -> Self {
        self.wire.keys = true;
        self
    }

    async fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> Result<TimeToLiveResponse> {
        let rpc = rpc::LEASE_TIME_TO_LIVE;
        let body = grpc::encode(&self.wire)?;
        let answer: LeaseTimeToLiveResponse = client.caller().unary(rpc, body, timeout).await?;
        Ok(TimeToLiveResponse {
            lease: self.wire.id,
            ..answer.into()
        })
    }

    /// Which lease is asked for.
    pub fn lease(&self) -> i64 {
        self.wire.id
    }
}

/// What is left of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeToLiveResponse {
    /// Its id.
    pub lease: i64,
    /// How long it has left, in whole seconds; `None` if there is no such lease.
    pub remaining: Option<Duration>,
    /// Its time to live as granted.
    pub granted: Duration,
    /// The keys bound to it, where they were asked for.
    pub keys: Vec<Bytes>,
}

impl From<LeaseTimeToLiveResponse> for TimeToLiveResponse {
    fn from(answer: LeaseTimeToLiveResponse) -> Self {
        let seconds = |ttl: i64| Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
        Self {
            lease: answer.id,
            remaining: (answer.ttl >= 0 && answer.granted_ttl > 0).then(|| seconds(answer.ttl)),
            granted: seconds(answer.granted_ttl),
            keys: answer.keys,
        }
    }
}

/// Lists the leases of the cluster.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Leases<C = ()> {
    timeout: Option<Duration>,
    client: C,
}

request!(Leases {} -> LeasesResponse);

/// A request that lists the leases of the cluster.
pub fn leases() -> Leases {
    Leases {
        timeout: None,
        client: (),
    }
}

impl<C> Leases<C> {
    async fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> Result<LeasesResponse> {
        let rpc = rpc::LEASE_LEASES;
        let body = grpc::encode(&LeaseLeasesRequest {})?;
        let answer: LeaseLeasesResponse = client.caller().unary(rpc, body, timeout).await?;
        Ok(answer.into())
    }
}

/// The leases of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasesResponse {
    /// Their ids.
    pub leases: Vec<i64>,
}

impl From<LeaseLeasesResponse> for LeasesResponse {
    fn from(answer: LeaseLeasesResponse) -> Self {
        Self {
            leases: answer.leases.iter().map(|lease| lease.id).collect(),
        }
    }
}
