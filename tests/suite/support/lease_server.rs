//! A scripted server that grants leases, counts keepalives, and swallows or refuses them on demand.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::proto::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse,
};
use prost::Message;
use testbed::{Call, Greeting, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::sync::Notify;

pub const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
/// What it answers to a keepalive unless told otherwise.
pub const TTL: Duration = Duration::from_secs(2);

/// What comes of a keepalive.
#[derive(Clone, Copy)]
pub enum Answer {
    Ttl(i64),
    Nothing,
    Refusal,
}

/// The server and what it knows.
pub struct Lessor {
    pub server: ScriptedServer,
    book: Book,
}

/// The keepalives it received, and what it answers.
#[derive(Clone, Default)]
struct Book {
    keepalives: Arc<Mutex<Vec<(i64, Instant)>>>,
    open: Arc<AtomicUsize>,
    answers: Arc<Mutex<HashMap<i64, Answer>>>,
}

impl Lessor {
    /// A server that grants what is asked for and renews it.
    pub async fn start() -> Self {
        let (server, book) = (ScriptedServer::start().await, Book::default());
        server.on(GRANT, |call| Reply::message(&granted(&call)));
        server.on(REVOKE, |_| Reply::message(&LeaseRevokeResponse::default()));
        let lessor = Self { server, book };
        lessor.on_keepalive_stream(|_, serve| serve);
        lessor
    }

    /// Two members of one cluster; the first one leads.
    pub async fn pair() -> (Self, Self) {
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

    /// Decides about keepalive streams by their calls; the second is the stream as it should be.
    pub fn on_keepalive_stream(
        &self,
        script: impl Fn(&Call, Reply) -> Reply + Send + Sync + 'static,
    ) {
        let book = self.book.clone();
        self.server
            .on(KEEP_ALIVE, move |call| script(&call, book.serve()));
    }

    /// Ends its connections, and takes no new ones.
    pub fn go_away(&self) {
        self.server.set_greeting(Greeting::Close);
        self.server.close_connections();
    }

    pub fn come_back(&self) {
        self.server.set_greeting(Greeting::Http2);
    }

    pub fn answer(&self, lease: i64, answer: Answer) {
        self.book.answers.lock().unwrap().insert(lease, answer);
    }

    pub fn count(&self, lease: i64) -> usize {
        self.times(lease).len()
    }

    /// Keepalive streams that are open now.
    pub fn streams(&self) -> usize {
        self.book.open.load(Ordering::SeqCst)
    }

    /// The leases it was asked to revoke.
    pub fn revoked(&self) -> Vec<i64> {
        let calls = self.server.calls(REVOKE).into_iter();
        let ids = calls.map(|call| LeaseRevokeRequest::decode(call.body).unwrap().id);
        ids.collect()
    }

    /// When keepalives of a lease arrived.
    pub fn times(&self, lease: i64) -> Vec<Instant> {
        let keepalives = self.book.keepalives.lock().unwrap();
        let meant = keepalives.iter().filter(|(id, _)| *id == lease);
        meant.map(|(_, at)| *at).collect()
    }
}

/// What grants what is asked for.
pub fn granted(call: &Call) -> LeaseGrantResponse {
    let asked = LeaseGrantRequest::decode(call.body.clone()).unwrap();
    LeaseGrantResponse {
        id: asked.id,
        ttl: asked.ttl,
        ..Default::default()
    }
}

/// An answer, once it is let go.
pub fn held<M: Message + 'static>(answer: M, go: &Arc<Notify>) -> Reply {
    let go = go.clone();
    Reply::streaming(async move |mut sender, _| {
        go.notified().await;
        let _ = sender.send(&answer).await;
    })
}

impl Book {
    fn serve(&self) -> Reply {
        let book = self.clone();
        Reply::streaming(async move |mut sender, mut receiver| {
            let _open = Open::count(&book.open);
            while let Some(asked) = receiver.recv_message::<LeaseKeepAliveRequest>().await {
                let id = asked.id;
                let now = Instant::now();
                book.keepalives.lock().unwrap().push((id, now));
                let answer = book.answers.lock().unwrap().get(&id).copied();
                let ttl = match answer.unwrap_or(Answer::Ttl(2)) {
                    Answer::Ttl(ttl) => ttl,
                    Answer::Nothing => continue,
                    Answer::Refusal => {
                        sender.status(7, "etcdserver: permission denied");
                        return;
                    }
                };
                let answer = LeaseKeepAliveResponse {
                    id,
                    ttl,
                    ..Default::default()
                };
                if sender.send(&answer).await.is_err() {
                    return;
                }
            }
        })
    }
}

/// Counts a stream for as long as it is served.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn count(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::SeqCst);
        Self(open.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
