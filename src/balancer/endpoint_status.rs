//! The public view of an endpoint's connection.

use std::time::Instant;

use actix::Message;

use super::{ConnectivityState, EndpointView};
use crate::error::Error;

/// Status of one endpoint, from [`Client::connectivity`](crate::Client::connectivity).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// The endpoint in its normalized form, for example `http://10.0.0.1:2379`.
    pub endpoint: String,
    /// State of the connection.
    pub state: ConnectivityState,
    /// Time at which the connection entered this state.
    pub since: Instant,
    /// Reason why the endpoint is not ready; `None` if it is ready or has not failed yet.
    pub last_error: Option<Error>,
    /// Id of the member behind the endpoint; `None` until the member has reported it.
    pub member_id: Option<u64>,
    /// Whether the member was the leader when it was last probed; `None` before the first probe.
    pub is_leader: Option<bool>,
    /// Number of requests and streams that are open on the connection.
    pub in_flight: usize,
}

impl From<&EndpointView> for EndpointStatus {
    fn from(view: &EndpointView) -> Self {
        let connection = view.connection.as_ref();
        let status = connection.and_then(|connection| connection.health().status);
        Self {
            endpoint: view.endpoint.as_str().to_owned(),
            state: view.state,
            since: view.since.into_std(),
            last_error: view.error.clone(),
            member_id: status.map(|status| status.member),
            is_leader: status.map(|status| status.is_leader()),
            in_flight: connection.map_or(0, |connection| connection.channel.open_streams()),
        }
    }
}

/// A change of an endpoint's connectivity state.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub struct ConnectivityChange {
    /// The endpoint in its normalized form, for example `http://10.0.0.1:2379`.
    pub endpoint: String,
    /// The new state.
    pub state: ConnectivityState,
    /// Reason why the endpoint is not ready; `None` if it is ready or has not failed yet.
    pub error: Option<Error>,
}
