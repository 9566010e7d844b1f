//! Finds out to which cluster a member belongs, without sending a token.
//!
//! A `Status` response contains the cluster id. If authentication is enabled, or the member has no leader, it is an
//! error without a header. But etcd refuses a watch without a token with an ordinary response, header included: in all
//! releases from 3.4 to 3.7 this is the only RPC that shows the cluster id to everyone.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::probe::{ProbeResult, request_status};
use crate::{
    proto::{WatchCreateRequest, WatchRequest, WatchResponse, rpc, watch_request::RequestUnion},
    transport::channel::{Channel, Metadata},
};

/// Shortest time to wait for the response to a later request.
const MIN_PATIENCE: Duration = Duration::from_millis(400);
/// Factor by which a later request may take longer than the `Status` request.
const SLOWER: u32 = 4;

/// A member's response to requests without a token.
pub(super) struct ClusterIdentity {
    /// Response to the `Status` request.
    pub(super) response: ProbeResult,
    /// The cluster id, or zero if the member reported none.
    pub(super) cluster: u64,
    /// Time until the response to the `Status` request.
    pub(super) round_trip: Duration,
}

impl ClusterIdentity {
    /// Returns how long to wait for another response on the same connection.
    pub(super) fn patience(&self) -> Duration {
        MIN_PATIENCE.max(self.round_trip * SLOWER)
    }
}

/// Requests the status and the cluster id of a member. No request carries a token.
pub(super) async fn identify(channel: &Channel) -> ClusterIdentity {
    let metadata = Metadata {
        require_leader: true,
        ..Metadata::default()
    };
    let sent_at = Instant::now();
    let response = request_status(channel, &metadata).await;
    let mut identity = ClusterIdentity {
        cluster: response.cluster(),
        response,
        round_trip: sent_at.elapsed(),
    };
    if identity.cluster == 0 && !matches!(identity.response, ProbeResult::Failed(_)) {
        let refused = timeout(identity.patience(), cluster_of_watch(channel)).await;
        identity.cluster = refused.ok().flatten().unwrap_or_default();
    }
    identity
}

/// Requests a watch and returns the cluster id of the response. The stream is reset afterwards.
async fn cluster_of_watch(channel: &Channel) -> Option<u64> {
    let stream =
        channel.stream::<WatchRequest, WatchResponse>(rpc::WATCH.path, &Metadata::default());
    let (mut request, mut responses) = stream.ok()?;
    let create = WatchCreateRequest {
        // The smallest key, which applications hardly use: the watch should receive no events.
        key: vec![0].into(),
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    request.send(&create).ok()?;
    let response = responses.next().await.ok()??;
    Some(response.header?.cluster_id)
}
