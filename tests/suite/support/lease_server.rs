//! A scripted server that grants leases, counts keepalives, and ignores or refuses them on demand.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client,
    proto::{
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
        LeaseRevokeRequest, LeaseRevokeResponse,
    },
};
use prost::Message;
use testbed::{Call, Greeting, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::sync::Notify;

pub const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
/// TTL in keepalive responses unless a test sets another response.
pub const TTL: Duration = Duration::from_secs(2);

/// The response to the keepalives of a lease.
#[derive(Clone, Copy)]
pub enum KeepaliveResponse {
    Ttl(i64),
    None,
    PermissionDenied,
}

pub struct LeaseServer {
    pub server: ScriptedServer,
    keepalives: Keepalives,
}

/// The keepalives that were received, and the responses to them.
#[derive(Clone, Default)]
struct Keepalives {
    received: Arc<Mutex<Vec<(i64, Instant)>>>,
    open_streams: Arc<AtomicUsize>,
    responses: Arc<Mutex<HashMap<i64, KeepaliveResponse>>>,
}

impl LeaseServer {
    /// Starts a server that grants every lease and renews it.
    pub async fn start() -> Self {
        let (server, keepalives) = (ScriptedServer::start().await, Keepalives::default());
        server.on(GRANT, |call| Reply::message(&grant_response(&call)));
        server.on(REVOKE, |_| Reply::message(&LeaseRevokeResponse::default()));
        let lease_server = Self { server, keepalives };
        lease_server.on_keepalive_stream(|_, served| served);
        lease_server
    }

    /// Starts a server and connects a client to it.
    pub async fn start_with_client() -> (Self, Client) {
        let lease_server = Self::start().await;
        let etcd = Client::connect([lease_server.server.endpoint()]).await;
        (lease_server, etcd.unwrap())
    }

    /// Starts two members of one cluster: the leader and a follower.
    pub async fn start_pair() -> (Self, Self) {
        let (leader, follower) = (Self::start().await, Self::start().await);
        follower.server.on(STATUS, |_| {
            let mut status = StatusResponse::healthy();
            if let Some(header) = &mut status.header {
                header.member_id = 2;
            }
            Reply::message(&status)
        });
        (leader, follower)
    }

    /// Sets the script for keepalive streams. Its second argument is the normal reply, which it may return.
    pub fn on_keepalive_stream(
        &self,
        script: impl Fn(&Call, Reply) -> Reply + Send + Sync + 'static,
    ) {
        let keepalives = self.keepalives.clone();
        self.server
            .on(KEEP_ALIVE, move |call| script(&call, keepalives.serve()));
    }

    /// Closes all connections and refuses new ones.
    pub fn go_offline(&self) {
        self.server.set_greeting(Greeting::Close);
        self.server.close_connections();
    }

    /// Accepts connections again.
    pub fn go_online(&self) {
        self.server.set_greeting(Greeting::Http2);
    }

    /// Sets the response to the keepalives of this lease.
    pub fn set_response(&self, lease: i64, response: KeepaliveResponse) {
        let mut responses = self.keepalives.responses.lock().unwrap();
        responses.insert(lease, response);
    }

    /// Returns how many keepalives of this lease have arrived.
    pub fn keepalive_count(&self, lease: i64) -> usize {
        self.keepalive_times(lease).len()
    }

    /// Returns the number of keepalive streams that are open now.
    pub fn open_streams(&self) -> usize {
        self.keepalives.open_streams.load(Ordering::SeqCst)
    }

    /// Returns the leases that clients have revoked.
    pub fn revoked(&self) -> Vec<i64> {
        let calls = self.server.calls(REVOKE).into_iter();
        let ids = calls.map(|call| LeaseRevokeRequest::decode(call.body).unwrap().id);
        ids.collect()
    }

    /// Returns the arrival times of the keepalives of this lease.
    pub fn keepalive_times(&self, lease: i64) -> Vec<Instant> {
        let received = self.keepalives.received.lock().unwrap();
        let of_lease = received.iter().filter(|(id, _)| *id == lease);
        of_lease.map(|(_, at)| *at).collect()
    }
}

/// Returns the response that grants the requested lease.
pub fn grant_response(call: &Call) -> LeaseGrantResponse {
    let request = LeaseGrantRequest::decode(call.body.clone()).unwrap();
    LeaseGrantResponse {
        id: request.id,
        ttl: request.ttl,
        ..Default::default()
    }
}

/// Sends the response once `release` is notified.
pub fn respond_when_notified<M: Message + 'static>(response: M, release: &Arc<Notify>) -> Reply {
    let release = release.clone();
    Reply::streaming(async move |mut sender, _| {
        release.notified().await;
        let _ = sender.send(&response).await;
    })
}

impl Keepalives {
    fn serve(&self) -> Reply {
        let keepalives = self.clone();
        Reply::streaming(async move |mut sender, mut receiver| {
            let _open = OpenStream::count(&keepalives.open_streams);
            while let Some(request) = receiver.recv_message::<LeaseKeepAliveRequest>().await {
                let id = request.id;
                let now = Instant::now();
                keepalives.received.lock().unwrap().push((id, now));
                let response = keepalives.responses.lock().unwrap().get(&id).copied();
                let ttl = match response.unwrap_or(KeepaliveResponse::Ttl(2)) {
                    KeepaliveResponse::Ttl(ttl) => ttl,
                    KeepaliveResponse::None => continue,
                    KeepaliveResponse::PermissionDenied => {
                        sender.status(7, "etcdserver: permission denied");
                        return;
                    }
                };
                let response = LeaseKeepAliveResponse {
                    id,
                    ttl,
                    ..Default::default()
                };
                if sender.send(&response).await.is_err() {
                    return;
                }
            }
        })
    }
}

/// Counts a stream as open until it is dropped.
struct OpenStream(Arc<AtomicUsize>);

impl OpenStream {
    fn count(open_streams: &Arc<AtomicUsize>) -> Self {
        open_streams.fetch_add(1, Ordering::SeqCst);
        Self(open_streams.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
