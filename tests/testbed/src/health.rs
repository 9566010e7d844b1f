//! Health of the cluster: its leader, its raft term, and whether all members serve.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, HEALTH_TIMEOUT};
use crate::gateway::number;
use crate::member::Member;
use crate::runtime;

/// Timeout of one status request; a frozen member never responds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

struct Status {
    leader: u64,
    term: u64,
    learner: bool,
}

impl Cluster {
    /// Waits until all running members have the same leader and serve linearizable reads.
    pub async fn wait_healthy(&self) {
        let cluster = self.clone();
        runtime::run(async move {
            let started = Instant::now();
            while let Err(reason) = cluster.check_health().await {
                let waited = started.elapsed();
                assert!(
                    waited < HEALTH_TIMEOUT,
                    "the cluster did not become healthy: {reason}\n{}",
                    cluster.logs()
                );
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Returns the index of the leader. Waits until there is one.
    pub async fn leader(&self) -> usize {
        let cluster = self.clone();
        runtime::run(async move {
            let started = Instant::now();
            loop {
                if let Some(leader) = cluster.reported_leader().await {
                    return leader;
                }
                assert!(
                    started.elapsed() < HEALTH_TIMEOUT,
                    "the cluster has no leader\n{}",
                    cluster.logs()
                );
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// Returns the newest raft term that a running member reports. It changes with every election.
    pub async fn term(&self) -> u64 {
        let cluster = self.clone();
        let statuses = runtime::run(async move { cluster.statuses().await }).await;
        let terms = statuses
            .iter()
            .filter_map(|(_, status)| Some(status.as_ref().ok()?.term));
        terms.max().unwrap_or(0)
    }

    async fn check_health(&self) -> Result<(), String> {
        let mut leaders = Vec::new();
        for (member, status) in self.statuses().await {
            let status = status.map_err(|error| format!("member {}: {error}", member.index()))?;
            leaders.push(status.leader);
            if !status.learner {
                let read = json!({"key": "AA==", "count_only": true});
                self.request(&member, "/v3/kv/range", &read).await?;
            }
        }
        let first = *leaders.first().ok_or("no member is running")?;
        if first == 0 || leaders.iter().any(|leader| *leader != first) {
            return Err(format!(
                "the members report different leaders: {leaders:x?}"
            ));
        }
        Ok(())
    }

    /// Returns the member that reports itself as leader in the newest term. An isolated member may report itself in an
    /// older term.
    async fn reported_leader(&self) -> Option<usize> {
        let statuses = self.statuses().await.into_iter();
        let known: Vec<_> = statuses
            .filter_map(|(member, status)| Some((member, status.ok()?)))
            .collect();
        let newest = known.iter().map(|(_, status)| status.term).max()?;
        let is_leader = |(member, status): &&(Member, Status)| {
            status.term == newest && status.leader == member.id()
        };
        known
            .iter()
            .find(is_leader)
            .map(|(member, _)| member.index())
    }

    /// Requests the status of all running members at once, and stores their member ids.
    async fn statuses(&self) -> Vec<(Member, Result<Status, String>)> {
        let request_status = |member: Member| {
            let cluster = self.clone();
            runtime::spawn(async move {
                let empty = json!({});
                let request = cluster.request(&member, "/v3/maintenance/status", &empty);
                let response = timeout(STATUS_TIMEOUT, request).await;
                let response =
                    response.unwrap_or_else(|_| Err("no response to a status request".to_owned()));
                let status = response.map(|response| {
                    member.set_id(number(&response["header"]["member_id"]));
                    Status {
                        leader: number(&response["leader"]),
                        term: number(&response["raftTerm"]),
                        learner: response["isLearner"].as_bool() == Some(true),
                    }
                });
                (member, status)
            })
        };
        let requests: Vec<_> = self.running().into_iter().map(request_status).collect();
        let mut statuses = Vec::new();
        for request in requests {
            statuses.extend(request.await);
        }
        statuses
    }
}
