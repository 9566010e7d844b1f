//! Probes a member with a `Maintenance.Status` request.
//!
//! HTTP/2 pings are not enough: etcd responds to them while it is cut off from its peers, and closes connections that
//! ping often. A `Status` request with `hasleader` distinguishes dead, frozen and leaderless members.

use tokio::time::{Instant, sleep_until};

use super::{RaftStatus, probe_timeout::ProbeTimeout};
use crate::{
    error::{Error, ErrorKind},
    proto::{StatusRequest, StatusResponse, rpc},
    transport::{
        channel::{Channel, Metadata, RequestTracker},
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
    TimedOut,
    /// The connection broke or the response was malformed.
    Broken(Error),
}

impl ProbeResult {
    /// Returns the reported cluster id, or zero if the member did not report one.
    pub(super) fn cluster(&self) -> u64 {
        match self {
            Self::Status(status) => status.cluster,
            Self::Alive | Self::NoLeader | Self::TimedOut | Self::Broken(_) => 0,
        }
    }
}

/// Probes a member on an established connection. `others_responded_since` returns whether another member has sent
/// data since the given time; see [`ProbeTimeout`].
pub(super) async fn probe(
    channel: &Channel,
    metadata: &Metadata,
    others_responded_since: impl Fn(Instant) -> bool,
) -> ProbeResult {
    let mut timeout = ProbeTimeout::new(Instant::now());
    let mut request = std::pin::pin!(request_status(channel, metadata));
    loop {
        tokio::select! {
            biased;
            result = &mut request => return result,
            () = sleep_until(timeout.limit()) => {}
        }
        let (sent_at, last_received) = (timeout.sent_at(), channel.wire_log().last_received());
        let others_responded = || others_responded_since(sent_at);
        if timeout.is_unresponsive(Instant::now(), last_received, others_responded) {
            return ProbeResult::TimedOut;
        }
    }
}

/// Sends one `Status` request and waits for the response without a time limit.
pub(super) async fn request_status(channel: &Channel, metadata: &Metadata) -> ProbeResult {
    let body = match grpc::encode(&StatusRequest::default()) {
        Ok(body) => body,
        Err(error) => return ProbeResult::Broken(error),
    };
    let tracker = RequestTracker::default();
    let response: Result<StatusResponse, grpc::RpcFailure> = channel
        .unary(rpc::STATUS.path, metadata, body, &tracker)
        .await;
    match response {
        Ok(response) => ProbeResult::Status(raft_status(&response)),
        Err(failure) => match (failure.error.kind(), failure.error.code()) {
            (ErrorKind::NoLeader, _) => ProbeResult::NoLeader,
            (_, Some(_)) => ProbeResult::Alive,
            (_, None) => ProbeResult::Broken(failure.error),
        },
    }
}

fn raft_status(response: &StatusResponse) -> RaftStatus {
    let header = response.header.unwrap_or_default();
    RaftStatus {
        at: Instant::now(),
        cluster: header.cluster_id,
        member: header.member_id,
        leader: response.leader,
        term: response.raft_term,
        index: response.raft_index,
        learner: response.is_learner,
    }
}
