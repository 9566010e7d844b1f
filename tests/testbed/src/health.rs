//! What the members say of themselves: who leads, and whether the cluster serves.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, PATIENCE};
use crate::gateway::number;
use crate::member::Member;
use crate::runtime;

/// How long one member may take to say how it is; a frozen one never does.
const ANSWER: Duration = Duration::from_secs(1);

struct Status {
    leader: u64,
    term: u64,
    learner: bool,
}

impl Cluster {
    /// Waits until every member that runs follows the same leader and answers linearizable reads.
    pub async fn wait_healthy(&self) {
        let cluster = self.clone();
        runtime::run(async move {
            let started = Instant::now();
            while let Err(why) = cluster.check_health().await {
                let waited = started.elapsed();
                assert!(
                    waited < PATIENCE,
                    "the cluster is not healthy: {why}\n{}",
                    cluster.logs()
                );
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// The member that leads. Waits while there is none.
    pub async fn leader(&self) -> usize {
        let cluster = self.clone();
        runtime::run(async move {
            let started = Instant::now();
            loop {
                if let Some(leader) = cluster.claimed_leader().await {
                    return leader;
                }
                assert!(
                    started.elapsed() < PATIENCE,
                    "the cluster has no leader\n{}",
                    cluster.logs()
                );
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// The newest raft term that a running member knows; another one than before tells of an election in between.
    pub async fn term(&self) -> u64 {
        let cluster = self.clone();
        let known = runtime::run(async move { cluster.statuses().await }).await;
        let terms = known
            .iter()
            .filter_map(|(_, status)| Some(status.as_ref().ok()?.term));
        terms.max().unwrap_or(0)
    }

    async fn check_health(&self) -> Result<(), String> {
        let mut leaders = Vec::new();
        for (member, status) in self.statuses().await {
            let status = status.map_err(|why| format!("member {}: {why}", member.index()))?;
            leaders.push(status.leader);
            if !status.learner {
                let read = json!({"key": "AA==", "count_only": true});
                self.ask(&member, "/v3/kv/range", &read).await?;
            }
        }
        let first = *leaders.first().ok_or("no member runs")?;
        if first == 0 || leaders.iter().any(|leader| *leader != first) {
            return Err(format!("the members name these leaders: {leaders:x?}"));
        }
        Ok(())
    }

    /// The member that says so itself, in the newest term anybody knows of: one that was cut off may say so for long.
    async fn claimed_leader(&self) -> Option<usize> {
        let statuses = self.statuses().await.into_iter();
        let known: Vec<_> = statuses
            .filter_map(|(member, status)| Some((member, status.ok()?)))
            .collect();
        let newest = known.iter().map(|(_, status)| status.term).max()?;
        let leads = |(member, status): &&(Member, Status)| {
            status.term == newest && status.leader == member.id()
        };
        known.iter().find(leads).map(|(member, _)| member.index())
    }

    /// What every running member says of itself, asked all at once. Learns their ids on the way.
    async fn statuses(&self) -> Vec<(Member, Result<Status, String>)> {
        let ask = |member: Member| {
            let cluster = self.clone();
            runtime::spawn(async move {
                let empty = json!({});
                let asked = cluster.ask(&member, "/v3/maintenance/status", &empty);
                let answer = timeout(ANSWER, asked).await;
                let answer = answer.unwrap_or_else(|_| Err("does not answer".to_owned()));
                let status = answer.map(|answer| {
                    member.set_id(number(&answer["header"]["member_id"]));
                    Status {
                        leader: number(&answer["leader"]),
                        term: number(&answer["raftTerm"]),
                        learner: answer["isLearner"].as_bool() == Some(true),
                    }
                });
                (member, status)
            })
        };
        let asked: Vec<_> = self.running().into_iter().map(ask).collect();
        let mut statuses = Vec::new();
        for answer in asked {
            statuses.extend(answer.await);
        }
        statuses
    }
}
