//! What an operator does to a cluster: leaders moved, members added and removed, authentication switched on.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, PATIENCE};
use crate::gateway::number;
use crate::runtime;

impl Cluster {
    /// Makes this member the leader, and waits until it leads.
    pub async fn move_leader(&self, to: usize) {
        let started = Instant::now();
        loop {
            let leader = self.leader().await;
            if leader == to {
                return;
            }
            let target = json!({"targetID": self.member(to).id().to_string()});
            let moved = self
                .api(leader, "/v3/maintenance/transfer-leadership", target)
                .await;
            let waited = started.elapsed();
            assert!(
                waited < PATIENCE,
                "the leader does not move to member {to}: {moved:?}\n{}",
                self.logs()
            );
            self.pause().await;
        }
    }

    /// Adds a member, starts it and waits until it serves; tells its number.
    pub async fn add_member(&self) -> usize {
        self.add(false).await
    }

    /// Adds a learner, starts it and waits until it answers; tells its number.
    pub async fn add_learner(&self) -> usize {
        self.add(true).await
    }

    /// Makes a learner a voting member, once it has caught up.
    pub async fn promote(&self, index: usize) {
        let id = self.member(index).id().to_string();
        self.api_any("/v3/cluster/member/promote", json!({"ID": id}))
            .await;
        self.wait_healthy().await;
    }

    /// Takes a member out of the cluster, then ends its process. Its number is not used again.
    pub async fn remove_member(&self, index: usize) {
        let member = self.member(index);
        self.api_any(
            "/v3/cluster/member/remove",
            json!({"ID": member.id().to_string()}),
        )
        .await;
        member.set_removed();
        member.kill();
    }

    /// Switches authentication on: this user with role `root`. The testbed itself goes on as this user.
    pub async fn enable_auth(&self, user: &str, password: &str) {
        assert_eq!(
            user, "root",
            "etcd wants a user root before it switches authentication on"
        );
        self.api_any(
            "/v3/auth/user/add",
            json!({"name": user, "password": password}),
        )
        .await;
        self.api_any("/v3/auth/role/add", json!({"name": "root"}))
            .await;
        self.api_any("/v3/auth/user/grant", json!({"user": user, "role": "root"}))
            .await;
        self.api_any("/v3/auth/enable", json!({})).await;
        self.set_root(user, password);
        self.wait_healthy().await;
    }

    /// Adds a user without rights, or with those of one role over the keys of a prefix.
    pub async fn add_user(&self, name: &str, password: &str, prefix: Option<&str>) {
        self.api_any(
            "/v3/auth/user/add",
            json!({"name": name, "password": password}),
        )
        .await;
        if let Some(prefix) = prefix {
            let role = format!("role-of-{name}");
            let (key, end) = (
                crate::encode(prefix),
                crate::encode(crate::history::prefix_end(prefix.as_bytes())),
            );
            let permission = json!({"permType": "READWRITE", "key": key, "range_end": end});
            self.api_any("/v3/auth/role/add", json!({"name": role}))
                .await;
            self.api_any(
                "/v3/auth/role/grant",
                json!({"name": role, "perm": permission}),
            )
            .await;
            self.api_any("/v3/auth/user/grant", json!({"user": name, "role": role}))
                .await;
        }
    }

    /// As [`Cluster::api`], of whichever member that runs can do it; retried until one can.
    pub async fn api_any(&self, path: &str, body: Value) -> Value {
        let (cluster, path) = (self.clone(), path.to_owned());
        runtime::run(async move {
            let started = Instant::now();
            loop {
                let mut errors = Vec::new();
                for member in cluster.running() {
                    match cluster.ask(&member, &path, &body).await {
                        Ok(answer) => return answer,
                        Err(why) => errors.push(why),
                    }
                }
                let waited = started.elapsed();
                assert!(
                    waited < PATIENCE,
                    "no member does {path}: {errors:?}\n{}",
                    cluster.logs()
                );
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }

    async fn add(&self, learner: bool) -> usize {
        let member = self.new_member();
        let body = json!({"peerURLs": [member.peer_url()], "isLearner": learner});
        let added = self.api_any("/v3/cluster/member/add", body).await;
        member.set_id(number(&added["member"]["ID"]));
        let peers = self.present();
        let peers: Vec<String> = peers
            .iter()
            .map(|m| format!("{}={}", m.name(), m.peer_url()))
            .collect();
        member.set_args(self.args(&peers, "existing"));
        member.start().await;
        self.wait_healthy().await;
        member.index()
    }

    /// Waits on the testbed's clock: the test's own may be paused.
    async fn pause(&self) {
        runtime::run(sleep(Duration::from_millis(20))).await;
    }
}
