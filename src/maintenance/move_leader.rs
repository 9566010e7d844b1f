//! Moving the leadership. Only the leader accepts the request, so the leader is searched first.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Maintenance;
use crate::{
    call::deadline_in,
    error::{Error, ErrorKind, Outcome, Result},
    proto::{MoveLeaderRequest, MoveLeaderResponse, rpc},
    request::{ClientHandle, HeaderResponse, macros::request},
    transport::grpc,
};

/// Delay between two searches for the leader.
const SEARCH_INTERVAL: Duration = Duration::from_millis(50);

/// Moves the leadership to a member. Created by [`Maintenance::move_leader`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct MoveLeader<C = ()> {
    to: u64,
    timeout: Option<Duration>,
    client: C,
}

request!(MoveLeader { to } -> HeaderResponse);

impl<C: Clone> Maintenance<C> {
    /// Moves the leadership to the member with this id. Only the current leader accepts the request, so the client
    /// searches for it among its endpoints.
    pub fn move_leader(&self, to: u64) -> MoveLeader<C> {
        MoveLeader {
            to,
            timeout: None,
            client: self.0.clone(),
        }
    }
}

impl MoveLeader {
    async fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> Result<HeaderResponse> {
        let body = grpc::encode(&MoveLeaderRequest { target_id: self.to })?;
        let caller = client.caller();
        let deadline = deadline_in(timeout);
        let mut not_leader: Option<Error> = None;
        loop {
            if let Err(error) = caller.wait_ready(deadline).await {
                return Err(not_leader.unwrap_or(error));
            }
            for member in caller.members_by_readiness() {
                if caller.connect_to(member.clone(), deadline).await.is_err() {
                    continue;
                }
                let remaining = deadline.saturating_duration_since(Instant::now());
                let member_caller = caller.at(member)?;
                match member_caller
                    .unary::<MoveLeaderResponse>(rpc::MOVE_LEADER, body.clone(), remaining)
                    .await
                {
                    Ok(response) => return response.try_into(),
                    Err(error) if error.kind() == ErrorKind::NotLeader => not_leader = Some(error),
                    // The deadline of the search can pass during a request to a follower.
                    Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                        let outcome = error.outcome();
                        return Err(not_leader.map_or(error, |last| last.with_outcome(outcome)));
                    }
                    Err(error) => return Err(error),
                }
            }
            // No leader: an election is in progress, or the leader is not ready or not an endpoint of this client.
            if Instant::now() + SEARCH_INTERVAL >= deadline {
                return Err(not_leader.unwrap_or_else(no_leader_found));
            }
            sleep(SEARCH_INTERVAL).await;
        }
    }
}

fn no_leader_found() -> Error {
    let reason = "no endpoint accepted a connection before the deadline";
    let kind = ErrorKind::DeadlineExceeded;
    Error::new(kind, Outcome::NotSent, reason).with_rpc(rpc::MOVE_LEADER)
}
