//! An HTTP/2 proxy in front of the members, such as Envoy or nginx, with scripted behavior.
//!
//! ```no_run
//! # async fn example() {
//! use testbed::{Cluster, Failure, L7Action, L7Proxy};
//!
//! let cluster = Cluster::start(3).await;
//! let proxy = L7Proxy::start(&cluster).await;
//! proxy.on_request(|request| match request.nth {
//!     0 => L7Action::fail(Failure::http(503)),
//!     _ => L7Action::forward(),
//! });
//! println!("{}", proxy.endpoint());
//! # }
//! ```
//!
//! It speaks plain-text HTTP/2 on both sides and chooses a member for each *request*, so the calls of one client
//! connection reach different members. Without a script it forwards all requests to the members in turn.

mod action;
mod connection;
mod exchange;
mod health_check;
mod upstream;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::cluster::Cluster;
use crate::link::Link;
use crate::member::Member;
use crate::tcp_proxy::TcpProxy;
use crate::{ports, runtime};
pub use action::{Failure, L7Action, ProxiedRequest};
use upstream::Upstreams;

type Script = Arc<dyn Fn(&ProxiedRequest) -> L7Action + Send + Sync>;

/// How the proxy reports its own errors, such as an unreachable member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorStyle {
    /// HTTP 200 with a gRPC status `UNAVAILABLE`, as Envoy does for gRPC requests.
    #[default]
    Envoy,
    /// HTTP 502, 503 or 504 with an HTML body and without a gRPC status.
    Nginx,
}

/// Handle to an L7 proxy, which stops when dropped.
pub struct L7Proxy {
    shared: Arc<Shared>,
    front: TcpProxy,
    tasks: Vec<AbortHandle>,
}

impl Drop for L7Proxy {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Shared {
    upstreams: Upstreams,
    settings: Mutex<Settings>,
    go_aways: AtomicU64,
}

/// Options and records of a proxy.
struct Settings {
    script: Option<Script>,
    style: ErrorStyle,
    idle_timeout: Option<Duration>,
    max_requests: Option<usize>,
    drain_timeout: Duration,
    requests: Vec<ProxiedRequest>,
    counts: HashMap<String, usize>,
}

impl L7Proxy {
    /// Starts a proxy over the client links of all current members.
    #[expect(clippy::unused_async, reason = "same signature as GrpcProxy::start")]
    pub async fn start(cluster: &Cluster) -> Self {
        Self::to_ports(cluster.members().iter().map(Member::client_port).collect())
    }

    /// Starts a proxy over the servers on these loopback ports.
    pub fn to_ports(ports: Vec<u16>) -> Self {
        let shared = Arc::new(Shared {
            upstreams: Upstreams::new(ports),
            settings: Mutex::new(Settings {
                script: None,
                style: ErrorStyle::default(),
                idle_timeout: None,
                max_requests: None,
                drain_timeout: Duration::from_secs(5),
                requests: Vec::new(),
                counts: HashMap::new(),
            }),
            go_aways: AtomicU64::new(0),
        });
        let (listener, port) = ports::listen();
        let listener = ports::into_tokio(listener);
        let accepting = shared.clone();
        let task = runtime::spawn(async move {
            // Owned by this task, so aborting it closes all connections.
            let mut connections = JoinSet::new();
            let mut number = 0;
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(connection::serve(accepting.clone(), socket, number));
                number += 1;
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            shared,
            front: TcpProxy::to_port(port),
            tasks: vec![task.abort_handle()],
        }
    }

    /// Returns the URL of the proxy.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.front.address())
    }

    /// Returns the link between clients and the proxy.
    pub fn link(&self) -> &Link {
        self.front.link()
    }

    /// Sets the script, which runs when the headers of a request have arrived. Replaces an earlier script.
    pub fn on_request(&self, script: impl Fn(&ProxiedRequest) -> L7Action + Send + Sync + 'static) {
        self.shared.settings().script = Some(Arc::new(script));
    }

    /// Forwards all requests from now on.
    pub fn clear_script(&self) {
        self.shared.settings().script = None;
    }

    /// How the proxy reports its own errors. Default: as Envoy.
    pub fn set_error_style(&self, style: ErrorStyle) {
        self.shared.settings().style = style;
    }

    /// Time without a request in progress after which a connection is shut down gracefully. Default: none.
    pub fn set_idle_timeout(&self, timeout: Duration) {
        self.shared.settings().idle_timeout = Some(timeout);
    }

    /// Number of requests after which a connection is shut down gracefully; applies to new connections. Default: no
    /// limit.
    pub fn set_max_requests(&self, requests: usize) {
        self.shared.settings().max_requests = Some(requests);
    }

    /// Time that requests in progress get after GOAWAY, before the connection is closed. Default: 5 s.
    pub fn set_drain_timeout(&self, timeout: Duration) {
        self.shared.settings().drain_timeout = timeout;
    }

    /// Checks the health of every member at this interval (`grpc.health.v1.Health/Check`), with the same timeout. An
    /// unhealthy member gets no requests, and its requests in progress are reset. Default: no checks.
    pub fn check_health_every(&mut self, interval: Duration) {
        let task = runtime::spawn(health_check::run(self.shared.clone(), interval));
        self.tasks.push(task.abort_handle());
    }

    /// Returns all requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<ProxiedRequest> {
        self.shared.settings().requests.clone()
    }

    /// Returns the number of requests of a path so far.
    pub fn count(&self, path: &str) -> usize {
        self.shared
            .settings()
            .counts
            .get(path)
            .copied()
            .unwrap_or(0)
    }

    /// Returns the number of requests that were sent to this member so far.
    pub fn forwarded(&self, member: usize) -> u64 {
        self.shared.upstreams.forwarded(member)
    }

    /// Returns the number of connections that the proxy has shut down with GOAWAY.
    pub fn go_aways(&self) -> u64 {
        self.shared.go_aways.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request and runs the script. The lock is released first, because a script may use the proxy.
    fn decide(&self, mut request: ProxiedRequest) -> (L7Action, ErrorStyle) {
        let (script, style) = {
            let mut settings = self.settings();
            let count = settings.counts.entry(request.path.clone()).or_default();
            request.nth = *count;
            *count += 1;
            settings.requests.push(request.clone());
            (settings.script.clone(), settings.style)
        };
        let action = script.map_or_else(L7Action::forward, |script| script(&request));
        (action, style)
    }
}

/// Waits until this time; for ever without one.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
