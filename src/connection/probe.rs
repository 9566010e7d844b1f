//! Probes a member with a `Maintenance.Status` request.
//!
//! HTTP/2 pings are not enough: etcd responds to them while it is cut off from its peers, and closes connections that
//! ping often. A `Status` request with `hasleader` distinguishes dead, frozen and leaderless members.

use std::time::Duration;

use http::HeaderValue;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    RaftStatus,
    probe_timeout::{LateProbe, ProbeTimeout},
    server_version::ServerVersion,
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::{StatusRequest, StatusResponse, rpc},
    transport::{
        channel::{Channel, Metadata, RequestTracker, StreamUse},
        grpc,
    },
};

/// Result of a probe.
#[derive(Debug)]
pub(super) enum ProbeResult {
    Status(RaftStatus),
    /// The member responded with an error other than "no leader", for example "permission denied". It is alive and has
    /// a leader.
    Alive,
    NoLeader,
    /// Nothing arrives from the member: neither the response nor anything else.
    Silent,
    /// Data arrives from the member, but no response to the probe.
    Ignored,
    /// The request failed without a response of the member: a proxy responded with an error, the stream was reset, or
    /// the connection broke.
    Failed(Error),
}

impl ProbeResult {
    /// Returns whether the member responded.
    pub(super) fn is_response(&self) -> bool {
        match self {
            Self::Status(_) | Self::Alive | Self::NoLeader => true,
            Self::Silent | Self::Ignored | Self::Failed(_) => false,
        }
    }

    /// Returns the reported cluster id, or zero if the member did not report one.
    pub(super) fn cluster(&self) -> u64 {
        match self {
            Self::Status(status) => status.cluster,
            Self::Alive | Self::NoLeader | Self::Silent | Self::Ignored | Self::Failed(_) => 0,
        }
    }
}

/// Probes a member on an established connection. `silence` is the time of silence that the round trips of the link do
/// not explain; `others_responded_since` returns whether another member has sent data since the given time; `on_late`
/// is called with that result when the member is suspected. See [`ProbeTimeout`]. Also returns the time since the request
/// was sent.
pub(super) async fn probe(
    channel: &Channel,
    metadata: &Metadata,
    silence: Duration,
    others_responded_since: impl Fn(Instant) -> bool,
    on_late: impl Fn(bool),
) -> (ProbeResult, Duration) {
    // If the connection allows no more streams, the member is not to blame: the timeout starts with the request.
    let _slot = channel.slot(StreamUse::Probe).await;
    let mut timeout = ProbeTimeout::new(Instant::now(), silence);
    let mut request = std::pin::pin!(send_request(channel, metadata));
    loop {
        tokio::select! {
            biased;
            result = &mut request => return (result, timeout.sent_at().elapsed()),
            () = sleep_until(timeout.limit()) => {}
        }
        let (sent_at, last_received) = (timeout.sent_at(), channel.wire_log().last_received());
        let others_responded = || others_responded_since(sent_at);
        match timeout.evaluate(Instant::now(), last_received, others_responded) {
            LateProbe::Wait => {}
            LateProbe::Suspect { others_responded } => on_late(others_responded),
            LateProbe::Silent => return (ProbeResult::Silent, sent_at.elapsed()),
            LateProbe::Ignored => return (ProbeResult::Ignored, sent_at.elapsed()),
        }
    }
}

/// Sends one `Status` request and waits for the response without a time limit.
pub(super) async fn request_status(channel: &Channel, metadata: &Metadata) -> ProbeResult {
    let _slot = channel.slot(StreamUse::Probe).await;
    send_request(channel, metadata).await
}

async fn send_request(channel: &Channel, metadata: &Metadata) -> ProbeResult {
    let body = match grpc::encode(&StatusRequest::default()) {
        Ok(body) => body,
        Err(error) => return ProbeResult::Failed(error),
    };
    let tracker = RequestTracker::default();
    let requested_at = Instant::now();
    let response: Result<StatusResponse, grpc::RpcFailure> = channel
        .unary(rpc::STATUS.path, metadata, body, &tracker)
        .await;
    match response {
        Ok(response) => ProbeResult::Status(raft_status(&response, requested_at)),
        Err(failure) => match failure.error.kind() {
            ErrorKind::NoLeader => ProbeResult::NoLeader,
            _ if shows_liveness(&failure.error) => ProbeResult::Alive,
            _ => ProbeResult::Failed(failure.error),
        },
    }
}

/// Returns whether the member responds to a request with this token within `limit`.
pub(crate) async fn responds_to_token(
    channel: &Channel,
    token: &HeaderValue,
    limit: Duration,
) -> bool {
    let metadata = Metadata {
        require_leader: false,
        token: Some(token.clone()),
        timeout: None,
    };
    let response = timeout(limit, request_status(channel, &metadata)).await;
    response.is_ok_and(|response| !matches!(response, ProbeResult::Failed(_)))
}

/// Returns whether an error shows that a member processed the request. A proxy without a connection to a member
/// responds with general errors, for example `UNAVAILABLE "no healthy upstream"`.
fn shows_liveness(error: &Error) -> bool {
    if error.code().is_none() {
        return false;
    }
    match error.kind() {
        ErrorKind::ServerUnavailable
        | ErrorKind::ServerDeadlineExceeded
        | ErrorKind::ServerCanceled
        | ErrorKind::Stopped
        | ErrorKind::Protocol => false,
        ErrorKind::Other => error.outcome() == Outcome::Rejected,
        _ => true,
    }
}

fn raft_status(response: &StatusResponse, requested_at: Instant) -> RaftStatus {
    let header = response.header.unwrap_or_default();
    RaftStatus {
        at: Instant::now(),
        requested_at,
        cluster: header.cluster_id,
        member: header.member_id,
        leader: response.leader,
        term: response.raft_term,
        index: response.raft_index,
        learner: response.is_learner,
        revision: header.revision,
        version: ServerVersion::parse(&response.version),
    }
}
