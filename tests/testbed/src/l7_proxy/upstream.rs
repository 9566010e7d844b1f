//! The connections of the proxy to the members, one per member, opened when needed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{ports, runtime};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const WINDOW: u32 = 1024 * 1024;

pub(super) struct Upstreams {
    members: Vec<Upstream>,
    next: AtomicUsize,
}

struct Upstream {
    port: u16,
    connection: Mutex<Option<Connection>>,
    unhealthy: AtomicBool,
    forwarded: AtomicU64,
}

/// An open connection. Dropping it closes the connection and resets its streams.
struct Connection {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Upstreams {
    pub(super) fn new(ports: Vec<u16>) -> Self {
        let upstream = |port| Upstream {
            port,
            connection: Mutex::default(),
            unhealthy: AtomicBool::new(false),
            forwarded: AtomicU64::new(0),
        };
        Self {
            members: ports.into_iter().map(upstream).collect(),
            next: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn forwarded(&self, member: usize) -> u64 {
        self.members[member].forwarded.load(Ordering::SeqCst)
    }

    /// Returns a connection to this member, or to the next healthy one in turn that accepts connections. Returns
    /// `None` if there is none.
    pub(super) async fn acquire(&self, member: Option<usize>) -> Option<SendRequest<Bytes>> {
        if let Some(member) = member {
            return self.members[member].acquire().await;
        }
        let first = self.next.fetch_add(1, Ordering::SeqCst);
        for offset in 0..self.len() {
            let member = &self.members[(first + offset) % self.len()];
            if member.unhealthy.load(Ordering::SeqCst) {
                continue;
            }
            if let Some(connection) = member.acquire().await {
                return Some(connection);
            }
        }
        None
    }

    /// Opens another connection to this member, for a health check.
    pub(super) async fn connect(
        &self,
        member: usize,
    ) -> Option<(SendRequest<Bytes>, impl Sized + use<>)> {
        let connection = self.members[member].connect().await?;
        Some((connection.requests.clone(), connection))
    }

    /// Sets the health of a member. Closes the connection of an unhealthy one.
    pub(super) async fn set_health(&self, member: usize, healthy: bool) {
        let member = &self.members[member];
        member.unhealthy.store(!healthy, Ordering::SeqCst);
        if !healthy {
            member.connection.lock().await.take();
        }
    }
}

impl Upstream {
    async fn acquire(&self) -> Option<SendRequest<Bytes>> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = &*connection
            && let Ok(requests) = open.requests.clone().ready().await
        {
            self.forwarded.fetch_add(1, Ordering::SeqCst);
            return Some(requests);
        }
        *connection = Some(self.connect().await?);
        self.forwarded.fetch_add(1, Ordering::SeqCst);
        connection.as_ref().map(|open| open.requests.clone())
    }

    async fn connect(&self) -> Option<Connection> {
        let open = async {
            let socket = TcpStream::connect(ports::loopback(self.port)).await.ok()?;
            let _ = socket.set_nodelay(true);
            let mut builder = h2::client::Builder::new();
            builder
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .initial_max_send_streams(1000);
            builder.handshake::<_, Bytes>(socket).await.ok()
        };
        let (requests, driver) = timeout(CONNECT_TIMEOUT, open).await.ok()??;
        let driver = runtime::spawn(async move {
            let _ = driver.await;
        });
        Some(Connection { requests, driver })
    }
}
