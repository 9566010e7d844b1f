//! What takes several requests to one end: moving the leadership, taking all alarms back.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Alarm, Maintenance, agreed};
use crate::{
    call::deadline_in,
    client::Client,
    error::{ErrorKind, Result},
    proto::{MoveLeaderRequest, MoveLeaderResponse},
    request::{HeaderResponse, request},
    retry::RpcClass,
    transport::grpc,
};

/// Between two rounds of asking who leads.
const LEADER_SOUGHT: Duration = Duration::from_millis(50);

/// Makes a member the leader. Made by [`Maintenance::move_leader`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct MoveLeader<C = ()> {
    to: u64,
    timeout: Option<Duration>,
    client: C,
}

request!(MoveLeader { to } -> HeaderResponse);

/// Takes all alarms back. Made by [`Maintenance::disarm_all`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct DisarmAll<C = ()> {
    timeout: Option<Duration>,
    client: C,
}

request!(DisarmAll {} -> Vec<Alarm>);

impl<C: Clone> Maintenance<C> {
    /// Takes all alarms back that are raised now, and tells them.
    pub fn disarm_all(&self) -> DisarmAll<C> {
        DisarmAll {
            timeout: None,
            client: self.0.clone(),
        }
    }

    /// Makes this member the leader. Only the leader can do it: it is found among the client's endpoints.
    pub fn move_leader(&self, to: u64) -> MoveLeader<C> {
        MoveLeader {
            to,
            timeout: None,
            client: self.0.clone(),
        }
    }
}

impl DisarmAll {
    async fn perform(self, client: &Client, timeout: Duration) -> Result<Vec<Alarm>> {
        let end = deadline_in(timeout);
        let left = || end.saturating_duration_since(Instant::now());
        let maintenance = client.maintenance();
        let raised = maintenance.alarms().timeout(left()).await?.alarms;
        for alarm in &raised {
            maintenance.disarm(*alarm).timeout(left()).await?;
        }
        Ok(raised)
    }
}

impl MoveLeader {
    async fn perform(self, client: &Client, timeout: Duration) -> Result<HeaderResponse> {
        let rpc = agreed("/etcdserverpb.Maintenance/MoveLeader", RpcClass::Mutation);
        let body = grpc::encode(&MoveLeaderRequest { target_id: self.to })?;
        let caller = client.caller();
        let deadline = deadline_in(timeout);
        loop {
            caller.wait_ready(deadline).await?;
            let mut refused = None;
            for member in caller.in_turn() {
                // One that cannot be reached may be somebody else by the next round.
                if caller.reach(member.clone(), deadline).await.is_err() {
                    continue;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                let asked = caller.at(member)?;
                match asked
                    .unary::<MoveLeaderResponse>(rpc, body.clone(), left)
                    .await
                {
                    Ok(answer) => return answer.try_into(),
                    Err(error) if error.kind() == ErrorKind::NotLeader => refused = Some(error),
                    Err(error) => return Err(error),
                }
            }
            // In the middle of an election nobody leads; or the leader is not ready, or not an endpoint.
            match refused {
                Some(error) if Instant::now() + LEADER_SOUGHT >= deadline => return Err(error),
                _ => sleep(LEADER_SOUGHT).await,
            }
        }
    }
}
