//! One etcd process and the two proxies in front of it.

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
use crate::proxy::{Listening, Proxy, Route};
use crate::{gateway, metrics, ports, runtime};

/// How long a process may take to listen, or to end when asked to.
const PATIENCE: Duration = Duration::from_secs(30);

/// One member of a cluster: a handle to its process and to the link its clients use.
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
    client: Proxy,
    peer: Proxy,
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
        let (client, peer) = (Listening::new(), Listening::new());
        let client_link = Link::new(format!("clients to member {index}"), Some(client.clone()));
        client_link.set_down(true);
        let state = State {
            index,
            scheme,
            binary,
            cleanup,
            client: Proxy::start(client, Route::Anyone(client_link.clone())),
            peer: Proxy::start(peer, Route::Peers(peers.clone(), index)),
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

    /// Its number in the cluster, from 0.
    pub fn index(&self) -> usize {
        self.state.index
    }

    /// Its name in the member list.
    pub fn name(&self) -> String {
        format!("m{}", self.state.index)
    }

    /// Its member id; known once the cluster was healthy.
    pub fn id(&self) -> u64 {
        self.state.id.load(Ordering::SeqCst)
    }

    /// Where clients reach it: the URL of its proxy, which it also advertises.
    pub fn endpoint(&self) -> String {
        format!(
            "{}://127.0.0.1:{}",
            self.state.scheme,
            self.state.client.port()
        )
    }

    /// Where it really listens, past the proxy. Another port after each start.
    pub fn direct_endpoint(&self) -> String {
        format!(
            "{}://127.0.0.1:{}",
            self.state.scheme,
            self.state.client_port.load(Ordering::SeqCst)
        )
    }

    /// The link between clients and this member.
    pub fn client_link(&self) -> &Link {
        &self.state.client_link
    }

    /// Its address leads clients to another member from now on, say to one of another cluster, as a name does that was
    /// given to another machine. What is open is reset.
    pub fn redirect_clients_to(&self, other: &Self) {
        let port = other.state.client_port.load(Ordering::SeqCst);
        self.state.client.set_target(port);
        self.state.client_link.reset_now();
    }

    /// The folder with its data. While it is down, they may be replaced by others, say by a restored backup.
    pub fn data_folder(&self) -> PathBuf {
        self.state.cleanup.folder().join(self.name())
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Child::id)
    }

    /// Whether its process is there, frozen or not.
    pub fn is_running(&self) -> bool {
        let mut process = self.process();
        process
            .as_mut()
            .is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// Whether it was taken out of the cluster.
    pub fn is_removed(&self) -> bool {
        self.state.removed.load(Ordering::SeqCst)
    }

    /// SIGKILL, and waits until the process is gone. Its ports then refuse connections.
    pub fn kill(&self) {
        let mut process = self.process();
        if let Some(mut child) = process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        drop(process);
        self.gone();
    }

    /// SIGTERM, and waits until the process has ended by itself.
    pub async fn stop(&self) {
        let member = self.clone();
        runtime::run(async move {
            member.thaw();
            member.signal(Signal::TERM);
            let started = Instant::now();
            while member.is_running() {
                assert!(
                    started.elapsed() < PATIENCE,
                    "member {} ignores SIGTERM",
                    member.index()
                );
                sleep(Duration::from_millis(5)).await;
            }
            member.kill();
        })
        .await;
    }

    /// Starts it with its data as they are, and waits until it listens (not until it is healthy: that may need its
    /// peers). Does nothing if it runs.
    pub async fn start(&self) {
        let member = self.clone();
        runtime::run(async move { member.start_here().await }).await;
    }

    /// Kills it if it runs, and starts it again.
    pub async fn restart(&self) {
        self.kill();
        self.start().await;
    }

    /// SIGSTOP: the kernel still accepts connections for it, nobody answers. Returns when all its threads stand still.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // The signal stops one thread after the other: a request in the meantime would still be answered.
        let limit = std::time::Instant::now() + Duration::from_secs(1);
        while self.pid().is_some_and(|pid| !stands_still(pid)) && std::time::Instant::now() < limit
        {
            std::thread::yield_now();
        }
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// A figure from its own metrics, such as `etcd_server_has_leader` or
    /// `grpc_server_handled_total{grpc_method="Put"}`; the sum of all series that have these labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let port = self.gateway_port();
        let page = runtime::run(async move { gateway::page(port, "/metrics").await }).await;
        metrics::figure(&page.ok()?, name)
    }

    /// Asks this member through its JSON gateway, past the proxies.
    pub(crate) async fn ask(
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

    /// Where its peers reach it: its other proxy.
    pub fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.state.peer.port())
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

    /// How many of the lines it logged so far have all of these in them. Most need `--log-level=debug`.
    pub fn count_log_lines(&self, parts: &[&str]) -> usize {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let fits = |line: &&str| parts.iter().all(|part| line.contains(part));
        log.lines().filter(fits).count()
    }

    /// The last lines it logged, for messages.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.log_file()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    async fn start_here(&self) {
        while !self.is_running() {
            self.spawn();
            self.listens().await;
        }
    }

    /// Another process may have taken a port in the meantime: etcd ends then, and is started on others.
    async fn listens(&self) {
        let started = Instant::now();
        while TcpStream::connect(ports::loopback(self.gateway_port()))
            .await
            .is_err()
        {
            if !self.is_running() {
                self.kill();
                let log = self.log();
                assert!(
                    log.contains("address already in use"),
                    "member {} does not start:\n{log}",
                    self.index()
                );
                return;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "member {} does not listen:\n{}",
                self.index(),
                self.log()
            );
            sleep(Duration::from_millis(2)).await;
        }
        self.state.client_link.set_down(false);
    }

    fn spawn(&self) {
        let state = &*self.state;
        let (client, peer) = (ports::free(), ports::free());
        let plain = if state.scheme == "https" {
            ports::free()
        } else {
            client
        };
        let mut listen = vec![format!("{}://127.0.0.1:{client}", state.scheme)];
        if plain != client {
            // With TLS the testbed still asks in plain text, on a port nobody else knows.
            listen.push(format!("http://127.0.0.1:{plain}"));
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("a log file can be opened");
        let errors = log.try_clone().expect("a file can be opened twice");
        let mut command = Command::new(&state.binary.path);
        command
            .env_clear()
            .arg(format!("--name={}", self.name()))
            .arg(format!("--data-dir={}", self.data_folder().display()))
            .arg(format!("--listen-client-urls={}", listen.join(",")))
            .arg(format!("--advertise-client-urls={}", self.endpoint()))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
            .arg(format!("--initial-advertise-peer-urls={}", self.peer_url()))
            .args(&*state.args.lock().unwrap_or_else(PoisonError::into_inner))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let child = command.spawn();
        let child = child
            .unwrap_or_else(|why| panic!("{} does not start: {why}", state.binary.path.display()));
        state.cleanup.watch(child.id());
        state.peers.set_process(state.index, Some(child.id()));
        *self.process() = Some(child);
        state.client_port.store(client, Ordering::SeqCst);
        state.gateway_port.store(plain, Ordering::SeqCst);
        state.client.set_target(client);
        state.peer.set_target(peer);
        state.peer.listening().set(true);
    }

    fn gone(&self) {
        self.state.client_link.set_down(true);
        self.state.peer.listening().set(false);
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

/// Whether every thread of a process is stopped, or the process is gone.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
        // The state follows the name, which stands in parentheses and may hold anything.
        .filter_map(|stat| {
            stat.rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('T'))
        })
        .all(|stopped| stopped)
}
