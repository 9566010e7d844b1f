//! Connectivity for people: what the balancer knows, without its insides.

use actix::Message;
use tokio::time::Instant;

use super::MemberView;
use crate::{connection::ConnectivityState, error::Error};

/// What is known of one endpoint.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EndpointStatus {
    /// The endpoint in its normal form.
    pub endpoint: String,
    /// The state of its connection.
    pub state: ConnectivityState,
    /// Since when it is in this state.
    pub since: Instant,
    /// Why it is not ready, where it is not.
    pub last_error: Option<Error>,
    /// The member behind it, where it has told.
    pub member_id: Option<u64>,
    /// Whether that member led the cluster when it was last looked at; unknown before.
    pub is_leader: Option<bool>,
    /// Requests and streams that are open on the connection.
    pub in_flight: usize,
}

impl From<&MemberView> for EndpointStatus {
    fn from(view: &MemberView) -> Self {
        let sighting = view
            .connection
            .as_ref()
            .and_then(|connection| connection.health().sighting);
        Self {
            endpoint: view.endpoint.as_str().to_owned(),
            state: view.state,
            since: view.since,
            last_error: view.error.clone(),
            member_id: sighting.map(|seen| seen.member),
            is_leader: sighting.map(|seen| seen.leader != 0 && seen.leader == seen.member),
            in_flight: view
                .connection
                .as_ref()
                .map_or(0, |connection| connection.channel.open_streams()),
        }
    }
}

/// An endpoint's connection changed its state.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub struct ConnectivityChange {
    /// The endpoint in its normal form.
    pub endpoint: String,
    /// The new state.
    pub state: ConnectivityState,
    /// Why it is not ready, where it is not.
    pub error: Option<Error>,
}
