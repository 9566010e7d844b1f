//! One etcd process and the proxies in front of its client port and its peer port.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::binary::Binary;
use crate::cleanup::CleanupGuard;
use crate::link::Link;
use crate::peers::PeerTable;
use crate::process::ServerProcess;
use crate::proxy::{Proxy, Route, SwitchableListener};
use crate::{gateway, metrics, ports, runtime};

/// Handle to one member of a cluster: its process and its client link.
#[derive(Clone, Debug)]
pub struct Member {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    index: usize,
    scheme: &'static str,
    binary: Binary,
    cleanup: Arc<CleanupGuard>,
    peers: Arc<PeerTable>,
    client_link: Link,
    client_proxy: Proxy,
    peer_proxy: Proxy,
    args: Mutex<Vec<String>>,
    process: ServerProcess,
    client_port: AtomicU16,
    gateway_port: AtomicU16,
    id: AtomicU64,
    removed: AtomicBool,
}

impl Member {
    pub(crate) fn new(
        index: usize,
        scheme: &'static str,
        binary: Binary,
        cleanup: Arc<CleanupGuard>,
        peers: Arc<PeerTable>,
    ) -> Self {
        let (client_listener, peer_listener) =
            (SwitchableListener::new(), SwitchableListener::new());
        let client_link = Link::new(
            format!("clients to member {index}"),
            Some(client_listener.clone()),
        );
        client_link.set_server_down(true);
        let log_file = cleanup.folder().join(format!("m{index}.log"));
        let state = State {
            index,
            scheme,
            binary,
            process: ServerProcess::new(log_file, cleanup.clone()),
            cleanup,
            client_proxy: Proxy::start(client_listener, Route::Clients(client_link.clone())),
            peer_proxy: Proxy::start(peer_listener, Route::Peers(peers.clone(), index)),
            peers,
            client_link,
            args: Mutex::default(),
            client_port: AtomicU16::new(0),
            gateway_port: AtomicU16::new(0),
            id: AtomicU64::new(0),
            removed: AtomicBool::new(false),
        };
        Self {
            state: Arc::new(state),
        }
    }

    /// Returns the index of the member in the cluster, from 0.
    pub fn index(&self) -> usize {
        self.state.index
    }

    /// Returns the name in the member list.
    pub fn name(&self) -> String {
        format!("m{}", self.state.index)
    }

    /// Returns the member id; 0 until the cluster was healthy once.
    pub fn id(&self) -> u64 {
        self.state.id.load(Ordering::SeqCst)
    }

    /// Returns the client URL, which leads through the proxy. The member advertises it.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.state.scheme, self.client_port())
    }

    /// Returns the port of the client URL. Restarts do not change it.
    pub fn client_port(&self) -> u16 {
        self.state.client_proxy.port()
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.state.scheme
    }

    /// Returns the client URL without the proxy. Each start changes the port.
    pub fn direct_endpoint(&self) -> String {
        format!(
            "{}://127.0.0.1:{}",
            self.state.scheme,
            self.state.client_port.load(Ordering::SeqCst)
        )
    }

    /// Returns the link between clients and this member.
    pub fn client_link(&self) -> &Link {
        &self.state.client_link
    }

    /// Makes this member's client URL lead to another member, possibly of another cluster, and resets the open
    /// connections. Simulates an address that was reassigned to another machine.
    pub fn redirect_clients_to(&self, other: &Self) {
        let port = other.state.client_port.load(Ordering::SeqCst);
        self.state.client_proxy.set_target(port);
        self.state.client_link.reset_now();
    }

    /// Returns the data folder. While the member is stopped, a test may replace its content, such as by a restored
    /// backup.
    pub fn data_folder(&self) -> PathBuf {
        self.state.cleanup.folder().join(self.name())
    }

    /// Returns the process id, if the member is running.
    pub fn pid(&self) -> Option<u32> {
        self.state.process.pid()
    }

    /// Returns whether the process exists, frozen or not.
    pub fn is_running(&self) -> bool {
        self.state.process.is_running()
    }

    /// Returns whether the member was removed from the cluster.
    pub fn is_removed(&self) -> bool {
        self.state.removed.load(Ordering::SeqCst)
    }

    /// Sends SIGKILL and waits until the process has ended. From then on the ports refuse connections.
    pub fn kill(&self) {
        self.state.process.kill();
        self.mark_stopped();
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub async fn stop(&self) {
        let member = self.clone();
        runtime::run(async move {
            member.state.process.terminate().await;
            member.mark_stopped();
        })
        .await;
    }

    /// Starts the member with its existing data and waits until it listens. Does not wait until it is healthy, because
    /// that may need its peers. Does nothing if the member is running.
    pub async fn start(&self) {
        let member = self.clone();
        runtime::run(async move { member.start_process().await }).await;
    }

    /// Kills the member if it is running, and starts it again.
    pub async fn restart(&self) {
        self.kill();
        self.start().await;
    }

    /// Sends SIGSTOP and waits until all threads have stopped. The kernel still accepts connections for the process.
    pub fn freeze(&self) {
        self.state.process.freeze();
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.state.process.thaw();
    }

    /// Returns the value of a metric, such as `etcd_server_has_leader` or
    /// `grpc_server_handled_total{grpc_method="Put"}`: the sum of all series with these labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let port = self.gateway_port();
        let page = runtime::run(async move { gateway::page(port, "/metrics").await }).await;
        metrics::sum(&page.ok()?, name)
    }

    /// Sends a request to the JSON gateway of this member, bypassing the proxies.
    pub(crate) async fn request(
        &self,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Value, String> {
        gateway::call(self.gateway_port(), path, body, token).await
    }

    pub(crate) fn gateway_port(&self) -> u16 {
        self.state.gateway_port.load(Ordering::SeqCst)
    }

    /// Returns the peer URL, which leads through the proxy.
    pub fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.state.peer_proxy.port())
    }

    pub(crate) fn set_args(&self, args: Vec<String>) {
        *self
            .state
            .args
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = args;
    }

    pub(crate) fn set_id(&self, id: u64) {
        self.state.id.store(id, Ordering::SeqCst);
    }

    pub(crate) fn set_removed(&self) {
        self.state.removed.store(true, Ordering::SeqCst);
    }

    /// Counts the log lines that contain all of `parts`. Most log lines need `--log-level=debug`.
    pub fn count_log_lines(&self, parts: &[&str]) -> usize {
        self.state.process.count_log_lines(parts)
    }

    /// Returns the last log lines, for panic messages.
    pub(crate) fn last_log_lines(&self) -> String {
        self.state.process.last_log_lines()
    }

    async fn start_process(&self) {
        while !self.is_running() {
            self.spawn();
            if self
                .state
                .process
                .wait_until_listening(self.gateway_port())
                .await
            {
                self.state.client_link.set_server_down(false);
            } else {
                self.kill();
            }
        }
    }

    fn spawn(&self) {
        let state = &*self.state;
        let (client_port, peer_port) = (ports::free(), ports::free());
        let gateway_port = if state.scheme == "https" {
            ports::free()
        } else {
            client_port
        };
        let mut listen = vec![format!("{}://127.0.0.1:{client_port}", state.scheme)];
        if gateway_port != client_port {
            // With TLS, the testbed itself uses an extra plain-text port.
            listen.push(format!("http://127.0.0.1:{gateway_port}"));
        }
        let mut command = Command::new(&state.binary.path);
        command
            .arg(format!("--name={}", self.name()))
            .arg(format!("--data-dir={}", self.data_folder().display()))
            .arg(format!("--listen-client-urls={}", listen.join(",")))
            .arg(format!("--advertise-client-urls={}", self.endpoint()))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .args(&*state.args.lock().unwrap_or_else(PoisonError::into_inner));
        let pid = state.process.spawn(command);
        state.peers.set_process(state.index, Some(pid));
        state.client_port.store(client_port, Ordering::SeqCst);
        state.gateway_port.store(gateway_port, Ordering::SeqCst);
        state.client_proxy.set_target(client_port);
        state.peer_proxy.set_target(peer_port);
        state.peer_proxy.listener().set_listening(true);
    }

    fn mark_stopped(&self) {
        self.state.client_link.set_server_down(true);
        self.state.peer_proxy.listener().set_listening(false);
        self.state.peers.set_process(self.state.index, None);
    }
}
