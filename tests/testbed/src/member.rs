//! One etcd process and the proxies in front of its client port and its peer port.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::binary::Binary;
use crate::cleanup::CleanupGuard;
use crate::link::Link;
use crate::peers::PeerTable;
use crate::proxy::{Proxy, Route, SwitchableListener};
use crate::{gateway, metrics, ports, runtime};

/// How long the process may take to listen, or to end after SIGTERM.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(30);

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
    process: Mutex<Option<Child>>,
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
        let state = State {
            index,
            scheme,
            binary,
            cleanup,
            client_proxy: Proxy::start(client_listener, Route::Clients(client_link.clone())),
            peer_proxy: Proxy::start(peer_listener, Route::Peers(peers.clone(), index)),
            peers,
            client_link,
            args: Mutex::default(),
            process: Mutex::default(),
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
        format!(
            "{}://127.0.0.1:{}",
            self.state.scheme,
            self.state.client_proxy.port()
        )
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
        self.process().as_ref().map(Child::id)
    }

    /// Returns whether the process exists, frozen or not.
    pub fn is_running(&self) -> bool {
        let mut process = self.process();
        process
            .as_mut()
            .is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// Returns whether the member was removed from the cluster.
    pub fn is_removed(&self) -> bool {
        self.state.removed.load(Ordering::SeqCst)
    }

    /// Sends SIGKILL and waits until the process has ended. From then on the ports refuse connections.
    pub fn kill(&self) {
        let mut process = self.process();
        if let Some(mut child) = process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        drop(process);
        self.mark_stopped();
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub async fn stop(&self) {
        let member = self.clone();
        runtime::run(async move {
            member.thaw();
            member.signal(Signal::TERM);
            let started = Instant::now();
            while member.is_running() {
                assert!(
                    started.elapsed() < PROCESS_TIMEOUT,
                    "member {} did not end after SIGTERM",
                    member.index()
                );
                sleep(Duration::from_millis(5)).await;
            }
            member.kill();
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
        self.signal(Signal::STOP);
        // The signal stops one thread after the other, and a running thread could still respond to a request.
        let limit = std::time::Instant::now() + Duration::from_secs(1);
        while self.pid().is_some_and(|pid| !is_stopped(pid)) && std::time::Instant::now() < limit {
            std::thread::yield_now();
        }
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
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
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let matches = |line: &&str| parts.iter().all(|part| line.contains(part));
        log.lines().filter(matches).count()
    }

    /// Returns the last log lines, for panic messages.
    pub(crate) fn last_log_lines(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    async fn start_process(&self) {
        while !self.is_running() {
            self.spawn();
            self.wait_until_listening().await;
        }
    }

    /// Also returns if etcd ended because another process took one of its ports; the caller then starts it on others.
    async fn wait_until_listening(&self) {
        let started = Instant::now();
        while TcpStream::connect(ports::loopback(self.gateway_port()))
            .await
            .is_err()
        {
            if !self.is_running() {
                self.kill();
                let log = self.last_log_lines();
                assert!(
                    log.contains("address already in use"),
                    "member {} did not start:\n{log}",
                    self.index()
                );
                return;
            }
            assert!(
                started.elapsed() < PROCESS_TIMEOUT,
                "member {} did not listen in time:\n{}",
                self.index(),
                self.last_log_lines()
            );
            sleep(Duration::from_millis(2)).await;
        }
        self.state.client_link.set_server_down(false);
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
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("open the log file");
        let errors = log.try_clone().expect("duplicate the log file handle");
        let mut command = Command::new(&state.binary.path);
        command
            .env_clear()
            .arg(format!("--name={}", self.name()))
            .arg(format!("--data-dir={}", self.data_folder().display()))
            .arg(format!("--listen-client-urls={}", listen.join(",")))
            .arg(format!("--advertise-client-urls={}", self.endpoint()))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .args(&*state.args.lock().unwrap_or_else(PoisonError::into_inner))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot start {}: {error}", state.binary.path.display())
        });
        state.cleanup.register(child.id());
        state.peers.set_process(state.index, Some(child.id()));
        *self.process() = Some(child);
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

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.process() {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn log_file(&self) -> PathBuf {
        self.state
            .cleanup
            .folder()
            .join(format!("{}.log", self.name()))
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.state
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether all threads of a process are stopped, or the process has ended.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
        // The state follows the name, which is in parentheses and may contain any character.
        .filter_map(|stat| {
            stat.rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('T'))
        })
        .all(|stopped| stopped)
}
