//! Queries: the remaining time of a lease, and the list of leases.

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

/// Queries the remaining time of a lease.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct TimeToLive<C = ()> {
    wire: LeaseTimeToLiveRequest,
    timeout: Option<Duration>,
    client: C,
}

request!(TimeToLive { wire } -> TimeToLiveResponse);

/// Creates a request for the remaining time of a lease.
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
    /// Includes the keys bound to the lease in the response. Default: without keys.
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
        let mut response: LeaseTimeToLiveResponse =
            client.caller().unary(rpc, body, timeout).await?;
        client.view().remove_prefix(&mut response);
        Ok(TimeToLiveResponse {
            lease: self.wire.id,
            ..response.into()
        })
    }

    /// Returns the id of the lease.
    pub fn lease(&self) -> i64 {
        self.wire.id
    }
}

/// Response to a [`TimeToLive`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeToLiveResponse {
    /// Id of the lease.
    pub lease: i64,
    /// Remaining time in whole seconds. `None` if the lease does not exist.
    pub remaining: Option<Duration>,
    /// TTL as granted.
    pub granted: Duration,
    /// Keys bound to the lease, if requested by [`with_keys`](TimeToLive::with_keys).
    pub keys: Vec<Bytes>,
}

impl From<LeaseTimeToLiveResponse> for TimeToLiveResponse {
    fn from(response: LeaseTimeToLiveResponse) -> Self {
        let seconds = |ttl: i64| Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
        Self {
            lease: response.id,
            remaining: (response.ttl >= 0 && response.granted_ttl > 0)
                .then(|| seconds(response.ttl)),
            granted: seconds(response.granted_ttl),
            keys: response.keys,
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

/// Creates a request that lists the leases of the cluster.
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
        let response: LeaseLeasesResponse = client.caller().unary(rpc, body, timeout).await?;
        Ok(response.into())
    }
}

/// Response to a [`Leases`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasesResponse {
    /// Ids of the leases.
    pub leases: Vec<i64>,
}

impl From<LeaseLeasesResponse> for LeasesResponse {
    fn from(response: LeaseLeasesResponse) -> Self {
        Self {
            leases: response.leases.iter().map(|lease| lease.id).collect(),
        }
    }
}
