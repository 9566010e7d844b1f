//! A gRPC server with scripted replies, for situations that real etcd cannot produce on demand.
//!
//! ```no_run
//! # async fn example() {
//! use testbed::{Reply, ScriptedServer};
//!
//! let server = ScriptedServer::start().await;
//! server.on("/etcdserverpb.KV/Put", |call| match call.nth {
//!     0 => Reply::status(14, "etcdserver: no leader"),
//!     _ => Reply::bytes(Vec::new()),
//! });
//! println!("{}", server.endpoint());
//! # }
//! ```
//!
//! The server speaks plain-text HTTP/2. From the start it replies to `Maintenance.Status` as a healthy member, so that
//! clients become ready. Paths without a script get `UNIMPLEMENTED`.

mod connection;
mod frame_injection;
mod messages;
mod reply;
mod stream;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::{ports, runtime};
pub use messages::{ResponseHeader, StatusResponse};
pub use reply::{GoAway, Reply};
pub use stream::{Receiver, Sender, StreamClosed, framed};

/// Path of the method that clients call to check the health of a member.
pub const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// A call that the server received.
#[derive(Clone, Debug)]
pub struct Call {
    /// Path, such as `/etcdserverpb.KV/Put`.
    pub path: String,
    /// Metadata.
    pub metadata: HeaderMap,
    /// First message, without the five-byte prefix. Empty in scripts of [`ScriptedServer::on_headers`].
    pub body: Bytes,
    /// Number of the connection, from 0.
    pub connection: u64,
    /// HTTP/2 stream id.
    pub stream_id: u32,
    /// Number of earlier calls of the same path.
    pub nth: usize,
    /// Time of arrival.
    pub at: Instant,
}

/// How the server greets new connections.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Greeting {
    /// HTTP/2.
    #[default]
    Http2,
    /// Sends these bytes and keeps the connection open.
    Garbage(Bytes),
    /// Sends nothing and keeps the connection open.
    Silence,
    /// Closes the connection.
    Close,
}

type Script = Arc<dyn Fn(Call) -> Reply + Send + Sync>;

/// Handle to a scripted server, which stops when the last handle is dropped.
#[derive(Clone)]
pub struct ScriptedServer {
    shared: Arc<Shared>,
    _task: Arc<ServerTask>,
}

struct ServerTask(AbortHandle);

impl Drop for ServerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// State shared by the server and its connections.
struct Shared {
    address: SocketAddr,
    state: Mutex<State>,
    accepted: AtomicU64,
    open: AtomicUsize,
    cancelled: AtomicU64,
}

#[derive(Default)]
struct State {
    message_scripts: HashMap<String, Script>,
    header_scripts: HashMap<String, Script>,
    default_script: Option<Script>,
    calls: Vec<Call>,
    counts: HashMap<String, usize>,
    greeting: Greeting,
    max_concurrent_streams: Option<u32>,
    connections: HashMap<u64, mpsc::UnboundedSender<connection::Command>>,
}

impl ScriptedServer {
    /// Starts a server on a free loopback port.
    #[expect(clippy::unused_async, reason = "same signature as Cluster::start")]
    pub async fn start() -> Self {
        let (listener, port) = ports::listen();
        let listener = ports::into_tokio(listener);
        let address = ports::loopback(port);
        let shared = Arc::new(Shared {
            address,
            state: Mutex::default(),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            cancelled: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        let task = runtime::spawn(async move {
            // Owned by this task, so aborting it closes all connections.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = accepting.accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(connection::serve(accepting.clone(), stream, number));
                while connections.try_join_next().is_some() {}
            }
        });
        let server = Self {
            shared,
            _task: Arc::new(ServerTask(task.abort_handle())),
        };
        server.on(STATUS, |_| Reply::message(&StatusResponse::healthy()));
        server
    }

    /// Returns the URL of the server.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Sets the script of a path, which runs after the first message of a call. Replaces an earlier script.
    pub fn on(&self, path: &str, script: impl Fn(Call) -> Reply + Send + Sync + 'static) {
        let mut state = self.shared.state();
        state.header_scripts.remove(path);
        state
            .message_scripts
            .insert(path.to_owned(), Arc::new(script));
    }

    /// Sets the script of a path, which runs before any message of a call is read. Replaces an earlier script.
    pub fn on_headers(&self, path: &str, script: impl Fn(Call) -> Reply + Send + Sync + 'static) {
        let mut state = self.shared.state();
        state.message_scripts.remove(path);
        state
            .header_scripts
            .insert(path.to_owned(), Arc::new(script));
    }

    /// Sets the script of all paths that have no script of their own.
    pub fn on_unscripted_path(&self, script: impl Fn(Call) -> Reply + Send + Sync + 'static) {
        self.shared.state().default_script = Some(Arc::new(script));
    }

    /// Returns the calls of a path so far, in order of arrival.
    pub fn calls(&self, path: &str) -> Vec<Call> {
        self.shared
            .state()
            .calls
            .iter()
            .filter(|call| call.path == path)
            .cloned()
            .collect()
    }

    /// Returns the number of calls of a path so far.
    pub fn count(&self, path: &str) -> usize {
        self.shared
            .state()
            .counts
            .get(path)
            .copied()
            .unwrap_or_default()
    }

    /// Returns all calls so far, in order of arrival.
    pub fn all_calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// Returns the number of calls that the client cancelled (`RST_STREAM`) before the reply.
    pub fn cancelled(&self) -> u64 {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Limits the concurrent streams of connections accepted from now on. Default: no limit.
    pub fn set_max_concurrent_streams(&self, streams: u32) {
        self.shared.state().max_concurrent_streams = Some(streams);
    }

    /// Sets the greeting of connections accepted from now on. Default: HTTP/2.
    pub fn set_greeting(&self, greeting: Greeting) {
        self.shared.state().greeting = greeting;
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        self.send_to_all(|| connection::Command::Close { reset: false });
    }

    /// Resets (RST) all connections.
    pub fn reset_connections(&self) {
        self.send_to_all(|| connection::Command::Close { reset: true });
    }

    /// Shuts all connections down gracefully: sends GOAWAY, completes the open streams, then closes.
    pub fn go_away_gracefully(&self) {
        self.send_to_all(|| connection::Command::ShutDownGracefully);
    }

    fn send_to_all(&self, command: impl Fn() -> connection::Command) {
        for connection in self.shared.state().connections.values() {
            let _ = connection.send(command());
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the script that runs before any message is read, if the path has one.
    fn headers_script(&self, path: &str) -> Option<Script> {
        self.state().header_scripts.get(path).cloned()
    }

    /// Records a call and runs its script. The lock is released first, because a script may use the server.
    fn run_script(&self, mut call: Call, script: Option<Script>) -> Reply {
        let script = {
            let mut state = self.state();
            let count = state.counts.entry(call.path.clone()).or_default();
            call.nth = *count;
            *count += 1;
            state.calls.push(call.clone());
            let find_script = || {
                state
                    .message_scripts
                    .get(&call.path)
                    .or(state.default_script.as_ref())
                    .cloned()
            };
            script.or_else(find_script)
        };
        match script {
            Some(script) => script(call),
            None => Reply::status(12, &format!("{} has no script", call.path)),
        }
    }
}
