//! A cluster of real members: creation, and operations on the whole cluster.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::builder::ClusterBuilder;
use crate::cleanup::CleanupGuard;
use crate::link::{Fault, Link};
use crate::member::Member;
use crate::network_path::{NetworkPath, PathKind};
use crate::peers::PeerTable;
use crate::runtime;
use crate::tls::Certificate;

/// How long the cluster may take to become healthy.
pub(crate) const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);

/// A running cluster. Clones are handles to the same cluster; dropping the last one kills the members and removes the
/// data folder.
#[derive(Clone, Debug)]
pub struct Cluster {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    members: RwLock<Vec<Member>>,
    peers: Arc<PeerTable>,
    cleanup: Arc<CleanupGuard>,
    binary: Binary,
    builder: ClusterBuilder,
    root: Mutex<Option<RootUser>>,
    /// The path that `ETCD_PATH` selects, unless that is direct.
    path: OnceLock<NetworkPath>,
}

/// Credentials of the testbed's own requests, once authentication is enabled.
#[derive(Clone, Debug)]
struct RootUser {
    user: String,
    password: String,
    token: Option<String>,
}

impl Drop for State {
    fn drop(&mut self) {
        for member in self
            .members
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
        {
            member.kill();
        }
    }
}

impl Cluster {
    /// Starts a cluster of `members` members and waits until it is healthy. Runs the newest etcd, unless `ETCD_BIN` or
    /// `ETCD_VERSION` selects another. `ETCD_PATH` (see [`PathKind::name`]) selects the path of clients to the cluster.
    pub async fn start(members: usize) -> Self {
        Self::builder().members(members).start().await
    }

    /// Returns a builder for a cluster with options.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    pub(crate) async fn build(builder: ClusterBuilder) -> Self {
        let binary = Binary::find(builder.version.as_deref());
        let cleanup = Arc::new(CleanupGuard::new());
        builder.write_files(cleanup.folder());
        let state = State {
            members: RwLock::default(),
            peers: Arc::default(),
            cleanup,
            binary,
            root: Mutex::default(),
            path: OnceLock::new(),
            builder,
        };
        let cluster = Self {
            state: Arc::new(state),
        };
        let members: Vec<Member> = (0..cluster.state.builder.members)
            .map(|_| cluster.new_member())
            .collect();
        let peers: Vec<String> = members
            .iter()
            .map(|member| format!("{}={}", member.name(), member.peer_url()))
            .collect();
        for member in &members {
            member.set_args(cluster.args(&peers, "new"));
        }
        cluster.start_all().await;
        let path = PathKind::from_env();
        if path != PathKind::Direct {
            let path = NetworkPath::open(path, &cluster).await;
            cluster.state.path.get_or_init(|| path);
        }
        cluster
    }

    /// Returns the URLs that clients connect to: those of the current members, or of the path that `ETCD_PATH`
    /// selects.
    pub fn endpoints(&self) -> Vec<String> {
        match self.state.path.get() {
            Some(path) => path.endpoints(),
            None => self.member_endpoints(),
        }
    }

    /// Returns the client URLs of the current members. They lead through the proxies.
    pub fn member_endpoints(&self) -> Vec<String> {
        self.members().iter().map(Member::endpoint).collect()
    }

    /// Returns the client URLs of the current members without the proxies. A restart changes them.
    pub fn direct_endpoints(&self) -> Vec<String> {
        self.members().iter().map(Member::direct_endpoint).collect()
    }

    /// Returns the number of members ever added. Removed members keep their index.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Always false: a cluster has at least one member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a member by its index.
    pub fn member(&self, index: usize) -> Member {
        let members = self.read();
        members
            .get(index)
            .unwrap_or_else(|| panic!("no member {index}: the cluster has {}", members.len()))
            .clone()
    }

    /// Returns the members that were not removed.
    pub fn members(&self) -> Vec<Member> {
        self.read()
            .iter()
            .filter(|member| !member.is_removed())
            .cloned()
            .collect()
    }

    /// Returns the temporary folder with the data, logs and certificates of all members.
    pub fn folder(&self) -> &std::path::Path {
        self.state.cleanup.folder()
    }

    /// Replaces the server certificate of all members. etcd reads it at the next handshake.
    pub fn replace_certificate(&self, certificate: &Certificate) {
        certificate.write(self.folder());
    }

    /// Returns the link that carries the connections dialled by member `from` to member `to`.
    pub fn peer_link(&self, from: usize, to: usize) -> Link {
        self.state.peers.link(from, to)
    }

    /// Cuts a member off from its peers, as if packets were dropped. Clients still reach it.
    pub fn isolate(&self, index: usize) {
        self.isolate_with(index, Fault::Freeze);
    }

    /// Sets a fault on all links between a member and its peers, in both directions.
    pub fn isolate_with(&self, index: usize, fault: Fault) {
        for other in (0..self.len()).filter(|other| *other != index) {
            self.peer_link(index, other).set(fault);
            self.peer_link(other, index).set(fault);
        }
    }

    /// Heals all client and peer links and thaws all members. Does not start stopped members.
    pub fn heal(&self) {
        for member in self.members() {
            member.thaw();
            member.client_link().heal();
            self.isolate_with(member.index(), Fault::None);
        }
    }

    /// Starts all stopped members at once and waits until the cluster is healthy.
    pub async fn start_all(&self) {
        let starting: Vec<_> = self
            .members()
            .into_iter()
            .map(|member| runtime::spawn(async move { member.start().await }))
            .collect();
        for started in starting {
            if let Err(error) = started.await {
                runtime::repeat_panic(error);
            }
        }
        self.wait_healthy().await;
    }

    /// Sends a request to the JSON gateway of a member, bypassing the proxies. Fails with etcd's error text.
    pub async fn api(&self, index: usize, path: &str, body: Value) -> Result<Value, String> {
        let (cluster, member, path) = (self.clone(), self.member(index), path.to_owned());
        runtime::run(async move { cluster.request(&member, &path, &body).await }).await
    }

    /// Like [`Cluster::api`], with an auth token.
    pub async fn api_with_token(
        &self,
        index: usize,
        token: &str,
        path: &str,
        body: Value,
    ) -> Result<Value, String> {
        let (member, path, token) = (self.member(index), path.to_owned(), token.to_owned());
        runtime::run(async move { member.request(&path, &body, Some(&token)).await }).await
    }

    pub(crate) async fn request(
        &self,
        member: &Member,
        path: &str,
        body: &Value,
    ) -> Result<Value, String> {
        let token = self.token(member, false).await?;
        let response = member.request(path, body, token.as_deref()).await;
        if token.is_some()
            && response
                .as_ref()
                .is_err_and(|error| error.contains("invalid auth token"))
        {
            let token = self.token(member, true).await?;
            return member.request(path, body, token.as_deref()).await;
        }
        response
    }

    /// Returns the testbed's own auth token, if authentication is enabled. `renew` forces a new login.
    pub(crate) async fn token(
        &self,
        member: &Member,
        renew: bool,
    ) -> Result<Option<String>, String> {
        let root = self
            .state
            .root
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(root) = root else { return Ok(None) };
        if let (false, Some(token)) = (renew, root.token) {
            return Ok(Some(token));
        }
        let body = json!({"name": root.user, "password": root.password});
        let response = member.request("/v3/auth/authenticate", &body, None).await?;
        let token = response["token"].as_str().map(str::to_owned);
        if let Some(root) = &mut *self
            .state
            .root
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            root.token.clone_from(&token);
        }
        Ok(token)
    }

    pub(crate) fn set_root(&self, user: &str, password: &str) {
        let root = RootUser {
            user: user.to_owned(),
            password: password.to_owned(),
            token: None,
        };
        *self
            .state
            .root
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(root);
    }

    pub(crate) fn new_member(&self) -> Member {
        let state = &*self.state;
        let mut members = state
            .members
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let (binary, cleanup, peers) = (
            state.binary.clone(),
            state.cleanup.clone(),
            state.peers.clone(),
        );
        let member = Member::new(
            members.len(),
            state.builder.scheme(),
            binary,
            cleanup,
            peers,
        );
        members.push(member.clone());
        member
    }

    /// Returns the flags of a member; `peers` are `name=url` entries, itself included.
    pub(crate) fn args(&self, peers: &[String], state: &str) -> Vec<String> {
        let mut args = vec![
            format!("--initial-cluster={}", peers.join(",")),
            format!("--initial-cluster-state={state}"),
            format!(
                "--initial-cluster-token={}",
                self.state.cleanup.folder().display()
            ),
        ];
        args.extend(
            self.state
                .builder
                .flags(&self.state.binary, self.state.cleanup.folder()),
        );
        args
    }

    pub(crate) fn binary(&self) -> Binary {
        self.state.binary.clone()
    }

    pub(crate) fn cleanup(&self) -> Arc<CleanupGuard> {
        self.state.cleanup.clone()
    }

    pub(crate) fn running(&self) -> Vec<Member> {
        self.members()
            .into_iter()
            .filter(Member::is_running)
            .collect()
    }

    /// Returns the last log lines of every member, for panic messages.
    pub(crate) fn logs(&self) -> String {
        let logs = self.members();
        let logs = logs
            .iter()
            .map(|m| format!("-- member {}:\n{}", m.index(), m.last_log_lines()));
        logs.collect::<Vec<_>>().join("\n")
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Member>> {
        self.state
            .members
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
