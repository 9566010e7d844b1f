//! Administration of a cluster: moves the leader, adds and removes members, enables authentication.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, HEALTH_TIMEOUT};
use crate::gateway::number;
use crate::runtime;

impl Cluster {
    /// Makes a member the leader and waits until it is.
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
                waited < HEALTH_TIMEOUT,
                "leadership did not move to member {to}: {moved:?}\n{}",
                self.logs()
            );
            self.sleep_before_retry().await;
        }
    }

    /// Adds a voting member, starts it and waits until the cluster is healthy. Returns its index.
    pub async fn add_member(&self) -> usize {
        self.add(false).await
    }

    /// Adds a learner, starts it and waits until the cluster is healthy. Returns its index.
    pub async fn add_learner(&self) -> usize {
        self.add(true).await
    }

    /// Promotes a learner to a voting member, as soon as it has caught up.
    pub async fn promote(&self, index: usize) {
        let id = self.member(index).id().to_string();
        self.api_any("/v3/cluster/member/promote", json!({"ID": id}))
            .await;
        self.wait_healthy().await;
    }

    /// Removes a member from the cluster and kills its process. Its index is not reused.
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

    /// Enables authentication with a user of role `root`. The testbed's own requests use this user from then on.
    pub async fn enable_auth(&self, user: &str, password: &str) {
        assert_eq!(
            user, "root",
            "etcd enables authentication only if the user root exists"
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

    /// Adds a user, with read and write permission for the keys of a prefix if one is given.
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

    /// Like [`Cluster::api`], on any running member. Retries until a member succeeds.
    pub async fn api_any(&self, path: &str, body: Value) -> Value {
        let (cluster, path) = (self.clone(), path.to_owned());
        runtime::run(async move {
            let started = Instant::now();
            loop {
                let mut errors = Vec::new();
                for member in cluster.running() {
                    match cluster.request(&member, &path, &body).await {
                        Ok(response) => return response,
                        Err(error) => errors.push(error),
                    }
                }
                let waited = started.elapsed();
                assert!(
                    waited < HEALTH_TIMEOUT,
                    "{path} failed on all members: {errors:?}\n{}",
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
        let peers = self.members();
        let peers: Vec<String> = peers
            .iter()
            .map(|peer| format!("{}={}", peer.name(), peer.peer_url()))
            .collect();
        member.set_args(self.args(&peers, "existing"));
        member.start().await;
        self.wait_healthy().await;
        member.index()
    }

    /// Sleeps on the testbed's runtime, because the test's clock may be paused.
    async fn sleep_before_retry(&self) {
        runtime::run(sleep(Duration::from_millis(20))).await;
    }
}
