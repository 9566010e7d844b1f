//! A gRPC server that does what a test tells it, for what etcd can't be made to do on demand.
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
//! HTTP/2 in plain text. A healthy `Maintenance.Status` is answered from the start, so that clients become ready; paths
//! without a script get `UNIMPLEMENTED`.

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
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::{ports, runtime};
pub use messages::{ResponseHeader, StatusResponse};
pub use reply::{GoAway, Reply};
pub use stream::{Receiver, Sender, StreamClosed, framed};

/// The path of the RPC clients ask to see whether a member is well.
pub const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// One call as the server saw it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its path, such as `/etcdserverpb.KV/Put`.
    pub path: String,
    /// Its metadata.
    pub metadata: HeaderMap,
    /// Its first message, without the prefix of five bytes. Empty where a script decides before it is read.
    pub body: Bytes,
    /// The connection it came on, from 0.
    pub connection: u64,
    /// Its HTTP/2 stream.
    pub stream_id: u32,
    /// How many calls of this path came before it.
    pub nth: usize,
    /// When it arrived.
    pub at: Instant,
}

/// What a new connection is met with.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Greeting {
    /// HTTP/2, as it should be.
    #[default]
    Http2,
    /// These bytes, then nothing: the connection stays open.
    Garbage(Bytes),
    /// Nothing at all; the connection stays open.
    Silence,
    /// The connection is closed.
    Close,
}

type Script = Arc<dyn Fn(Call) -> Reply + Send + Sync>;

/// A scripted server; it ends when the last handle is dropped.
#[derive(Clone)]
pub struct ScriptedServer {
    shared: Arc<Shared>,
    _running: Arc<Running>,
}

struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the server and its connections know together.
struct Shared {
    address: SocketAddr,
    plan: Mutex<Plan>,
    accepted: AtomicU64,
    open: AtomicUsize,
    cancelled: AtomicU64,
}

#[derive(Default)]
struct Plan {
    by_message: HashMap<String, Script>,
    by_head: HashMap<String, Script>,
    on_unscripted_path: Option<Script>,
    calls: Vec<Call>,
    counts: HashMap<String, usize>,
    greeting: Greeting,
    max_concurrent_streams: Option<u32>,
    connections: HashMap<u64, mpsc::UnboundedSender<connection::Command>>,
}

impl ScriptedServer {
    /// A server on a free port of loopback.
    #[expect(
        clippy::unused_async,
        reason = "awaited as a cluster is: it may have to wait one day"
    )]
    pub async fn start() -> Self {
        let (listener, port) = ports::listen();
        let address = ports::loopback(port);
        let shared = Arc::new(Shared {
            address,
            plan: Mutex::default(),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            cancelled: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        let task = runtime::spawn(async move {
            listener
                .set_nonblocking(true)
                .expect("a listener can be non-blocking");
            let listener = TcpListener::from_std(listener).expect("the runtime takes a listener");
            // Dropped with this task, and with it every connection.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = accepting.accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(connection::serve(accepting.clone(), stream, number));
                while connections.try_join_next().is_some() {}
            }
        });
        let server = Self {
            shared,
            _running: Arc::new(Running(task.abort_handle())),
        };
        server.on(STATUS, |_| Reply::message(&StatusResponse::healthy()));
        server
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Decides what calls of a path get, once their first message was read. Replaces what was said before.
    pub fn on(&self, path: &str, script: impl Fn(Call) -> Reply + Send + Sync + 'static) {
        let mut plan = self.shared.plan();
        plan.by_head.remove(path);
        plan.by_message.insert(path.to_owned(), Arc::new(script));
    }

    /// Decides what calls of a path get before any of their messages is read.
    pub fn on_headers(&self, path: &str, script: impl Fn(Call) -> Reply + Send + Sync + 'static) {
        let mut plan = self.shared.plan();
        plan.by_message.remove(path);
        plan.by_head.insert(path.to_owned(), Arc::new(script));
    }

    /// Decides what calls get whose path has no script.
    pub fn on_unscripted_path(&self, script: impl Fn(Call) -> Reply + Send + Sync + 'static) {
        self.shared.plan().on_unscripted_path = Some(Arc::new(script));
    }

    /// The calls of a path so far, in the order they came.
    pub fn calls(&self, path: &str) -> Vec<Call> {
        self.shared
            .plan()
            .calls
            .iter()
            .filter(|call| call.path == path)
            .cloned()
            .collect()
    }

    /// How many calls of a path came so far.
    pub fn count(&self, path: &str) -> usize {
        self.shared
            .plan()
            .counts
            .get(path)
            .copied()
            .unwrap_or_default()
    }

    /// Every call so far, in the order they came.
    pub fn all_calls(&self) -> Vec<Call> {
        self.shared.plan().calls.clone()
    }

    /// How many calls the client gave up (`RST_STREAM`) while they hung.
    pub fn cancelled(&self) -> u64 {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many streams a client may have open at once, on connections that are accepted from now on.
    pub fn set_max_concurrent_streams(&self, streams: u32) {
        self.shared.plan().max_concurrent_streams = Some(streams);
    }

    /// What connections are met with from now on.
    pub fn set_greeting(&self, greeting: Greeting) {
        self.shared.plan().greeting = greeting;
    }

    /// Closes every connection.
    pub fn close_connections(&self) {
        self.tell_all(|| connection::Command::End { reset: false });
    }

    /// Resets (RST) every connection.
    pub fn reset_connections(&self) {
        self.tell_all(|| connection::Command::End { reset: true });
    }

    /// Tells every connection to end in order: GOAWAY, what is open finishes, then the connection closes.
    pub fn go_away_gracefully(&self) {
        self.tell_all(|| connection::Command::Finish);
    }

    fn tell_all(&self, command: impl Fn() -> connection::Command) {
        for connection in self.shared.plan().connections.values() {
            let _ = connection.send(command());
        }
    }
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The script that decides without a message, if the path has one.
    fn head_script(&self, path: &str) -> Option<Script> {
        self.plan().by_head.get(path).cloned()
    }

    /// Notes a call and runs its script. The lock is not held while it runs: it may use the server itself.
    fn decide(&self, mut call: Call, script: Option<Script>) -> Reply {
        let script = {
            let mut plan = self.plan();
            let count = plan.counts.entry(call.path.clone()).or_default();
            call.nth = *count;
            *count += 1;
            plan.calls.push(call.clone());
            let by_message = || {
                plan.by_message
                    .get(&call.path)
                    .or(plan.on_unscripted_path.as_ref())
                    .cloned()
            };
            script.or_else(by_message)
        };
        match script {
            Some(script) => script(call),
            None => Reply::status(12, &format!("{} has no script", call.path)),
        }
    }
}
