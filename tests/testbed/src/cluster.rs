//! A cluster of real members: how it is made, and what can be done to it as a whole.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::Binary;
use crate::builder::ClusterBuilder;
use crate::cleanup::CleanupGuard;
use crate::link::{Fault, Link};
use crate::member::Member;
use crate::peers::PeerTable;
use crate::runtime;
use crate::tls::Certificate;

/// How long a cluster may take to become healthy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running cluster. Clones are handles to the same one; its processes and its folder go with the last of them.
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
    root: Mutex<Option<Root>>,
}

/// Who the testbed itself is, once authentication is on.
#[derive(Clone, Debug)]
struct Root {
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
    /// A healthy cluster of this many members, of the newest etcd or what `ETCD_BIN` or `ETCD_VERSION` says.
    pub async fn start(members: usize) -> Self {
        Self::builder().members(members).start().await
    }

    /// A cluster with options.
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
            .map(|m| format!("{}={}", m.name(), m.peer_url()))
            .collect();
        for member in &members {
            member.set_args(cluster.args(&peers, "new"));
        }
        cluster.start_all().await;
        cluster
    }

    /// Where clients reach the members that were not removed: their proxies.
    pub fn endpoints(&self) -> Vec<String> {
        self.present().iter().map(Member::endpoint).collect()
    }

    /// Where the members listen themselves, past the proxies. A restart changes it.
    pub fn direct_endpoints(&self) -> Vec<String> {
        self.present().iter().map(Member::direct_endpoint).collect()
    }

    /// How many members were ever started; indices stay when one is removed.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether there is no member at all, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One member, by its number from 0.
    pub fn member(&self, index: usize) -> Member {
        let members = self.read();
        members
            .get(index)
            .unwrap_or_else(|| panic!("there is no member {index} among {}", members.len()))
            .clone()
    }

    /// All members that were not removed.
    pub fn members(&self) -> Vec<Member> {
        self.present()
    }

    /// The temporary folder its data are in.
    pub fn folder(&self) -> &std::path::Path {
        self.state.cleanup.folder()
    }

    /// Gives every member another server certificate; etcd reads it at the next handshake.
    pub fn replace_certificate(&self, certificate: &Certificate) {
        certificate.write(self.folder());
    }

    /// What member `from` dials to member `to`.
    pub fn peer_link(&self, from: usize, to: usize) -> Link {
        self.state.peers.link(from, to)
    }

    /// Cuts a member off from its peers: no byte moves between them, as if packets were dropped. Clients still reach it.
    pub fn isolate(&self, index: usize) {
        self.isolate_with(index, Fault::Freeze);
    }

    /// Does the same to every link between a member and its peers, in both directions.
    pub fn isolate_with(&self, index: usize, fault: Fault) {
        for other in (0..self.len()).filter(|other| *other != index) {
            self.peer_link(index, other).set(fault);
            self.peer_link(other, index).set(fault);
        }
    }

    /// Heals every link, of clients and of peers, and thaws every member. What is down stays down.
    pub fn heal(&self) {
        for member in self.present() {
            member.thaw();
            member.client_link().heal();
            self.isolate_with(member.index(), Fault::None);
        }
    }

    /// Starts every member that is down, all at once, and waits until the cluster is healthy.
    pub async fn start_all(&self) {
        let starting: Vec<_> = self
            .present()
            .into_iter()
            .map(|m| runtime::spawn(async move { m.start().await }))
            .collect();
        for started in starting {
            if let Err(failed) = started.await {
                std::panic::resume_unwind(failed.into_panic());
            }
        }
        self.wait_healthy().await;
    }

    /// Asks a member through its JSON gateway, past the proxies: the answer, or what etcd says is wrong.
    pub async fn api(&self, index: usize, path: &str, body: Value) -> Result<Value, String> {
        let (cluster, member, path) = (self.clone(), self.member(index), path.to_owned());
        runtime::run(async move { cluster.ask(&member, &path, &body).await }).await
    }

    /// As [`Cluster::api`], with a token of the caller's.
    pub async fn api_with_token(
        &self,
        index: usize,
        token: &str,
        path: &str,
        body: Value,
    ) -> Result<Value, String> {
        let (member, path, token) = (self.member(index), path.to_owned(), token.to_owned());
        runtime::run(async move { member.ask(&path, &body, Some(&token)).await }).await
    }

    pub(crate) async fn ask(
        &self,
        member: &Member,
        path: &str,
        body: &Value,
    ) -> Result<Value, String> {
        let token = self.token(member, false).await?;
        let answer = member.ask(path, body, token.as_deref()).await;
        if token.is_some()
            && answer
                .as_ref()
                .is_err_and(|why| why.contains("invalid auth token"))
        {
            let token = self.token(member, true).await?;
            return member.ask(path, body, token.as_deref()).await;
        }
        answer
    }

    /// The testbed's own token, if authentication is on.
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
        let answer = member.ask("/v3/auth/authenticate", &body, None).await?;
        let token = answer["token"].as_str().map(str::to_owned);
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
        let root = Root {
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

    /// The flags of a member that starts among these peers (`name=url`).
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

    pub(crate) fn present(&self) -> Vec<Member> {
        self.read()
            .iter()
            .filter(|member| !member.is_removed())
            .cloned()
            .collect()
    }

    pub(crate) fn running(&self) -> Vec<Member> {
        self.present()
            .into_iter()
            .filter(Member::is_running)
            .collect()
    }

    /// The last lines every member logged, for messages.
    pub(crate) fn logs(&self) -> String {
        let logs = self.present();
        let logs = logs
            .iter()
            .map(|m| format!("-- member {}:\n{}", m.index(), m.log()));
        logs.collect::<Vec<_>>().join("\n")
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Member>> {
        self.state
            .members
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
