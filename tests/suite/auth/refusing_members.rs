//! Members that refuse every token, or never respond to a request with one. The token stays valid for the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    balancer::ConnectivityState,
    proto::{PutRequest, kv_client::KvClient},
};
use testbed::{Call, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::time::{Instant, sleep};

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, assert_all_succeed, invalid_token_reply, login_reply, missing_token_reply,
        spawn_puts,
    },
    scripted_put::{PUT, put_reply},
    wait::{hold, until},
};

/// Scripted members of one cluster. Tokens are numbered over all of them.
struct Members {
    servers: Vec<ScriptedServer>,
    logins: Arc<AtomicUsize>,
}

impl Members {
    /// Starts members that reply to requests with a token by their script.
    async fn start(scripts: &[fn(Call, Reply) -> Reply]) -> Self {
        let logins = Arc::new(AtomicUsize::new(0));
        let mut servers = Vec::new();
        for &script in scripts {
            let server = ScriptedServer::start().await;
            let counter = logins.clone();
            server.on(AUTHENTICATE, move |_| {
                login_reply(&format!("token-{}", counter.fetch_add(1, Ordering::SeqCst)))
            });
            let reply = move |call: Call, success: Reply| match call.metadata.get("token") {
                None => missing_token_reply(),
                Some(_) => script(call, success),
            };
            server.on(PUT, move |call| reply(call, put_reply()));
            server.on(STATUS, move |call| {
                reply(call, Reply::message(&StatusResponse::healthy()))
            });
            servers.push(server);
        }
        Self { servers, logins }
    }

    async fn connect(&self) -> Client {
        Client::builder(self.servers.iter().map(ScriptedServer::endpoint))
            .credentials("ann", "word")
            .connect()
            .await
            .unwrap()
    }

    fn logins(&self) -> usize {
        self.logins.load(Ordering::SeqCst)
    }
}

fn accept(_: Call, success: Reply) -> Reply {
    success
}

/// Refuses the tokens of puts; probes succeed.
#[expect(
    clippy::needless_pass_by_value,
    reason = "one signature for all scripts"
)]
fn refuse(call: Call, success: Reply) -> Reply {
    if call.path == PUT {
        invalid_token_reply()
    } else {
        success
    }
}

fn stay_silent(_: Call, _: Reply) -> Reply {
    Reply::hang()
}

#[tokio::test]
async fn refusing_member_costs_no_put_and_no_login() {
    for scripts in [&[refuse, accept][..], &[accept, refuse, accept][..]] {
        let members = Members::start(scripts).await;
        let etcd = members.connect().await;
        for _ in 0..12 {
            etcd.put("k", "v").await.unwrap();
        }
        assert_all_succeed(spawn_puts(&etcd, 32)).await;
        assert_eq!(members.logins(), 1);
    }
}

/// A member may have lost an old token, so the client renews it once. The member refuses the fresh token, too, and is
/// avoided.
#[tokio::test]
async fn refusing_member_costs_one_login_with_old_token() {
    let members = Members::start(&[refuse, accept]).await;
    let etcd = members.connect().await;
    hold(Duration::from_millis(1100)).await;
    for n in 0..24 {
        etcd.put(format!("k/{n}"), "v").await.unwrap();
    }
    assert_eq!(members.logins(), 2);
}

#[tokio::test]
async fn logins_are_spaced_if_every_member_refuses() {
    let members = Members::start(&[refuse, refuse]).await;
    let etcd = members.connect().await;
    let started = Instant::now();
    let puts: Vec<_> = (0..8)
        .map(|_| etcd.put("k", "v").into_future())
        .map(tokio::spawn)
        .collect();
    for put in puts {
        let error = put.await.unwrap().unwrap_err();
        let found = (error.kind(), error.outcome());
        assert_eq!(
            found,
            (ErrorKind::InvalidAuthToken, Outcome::Rejected),
            "{error}"
        );
    }
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!(
        members.logins() <= 1 + seconds,
        "{} logins in {seconds} s",
        members.logins()
    );
}

#[tokio::test]
async fn raw_calls_avoid_refusing_member() {
    let members = Members::start(&[refuse, accept]).await;
    let etcd = members.connect().await;
    let mut raw = KvClient::new(etcd.grpc());
    let mut refused = 0;
    for _ in 0..12 {
        refused += usize::from(raw.put(PutRequest::default()).await.is_err());
    }
    assert!(refused <= 1, "{refused} calls were refused");
    assert_eq!(members.logins(), 1);
}

/// A member that does not respond to requests with a token is not ready, and the token stays valid for the others.
#[tokio::test]
async fn silent_member_costs_no_login_and_no_write() {
    check_silent_member(&[accept, stay_silent], 1).await;
}

/// The first member that is ready serves the login, which carries no token.
#[tokio::test]
async fn silent_member_that_serves_the_login_costs_no_write() {
    check_silent_member(&[stay_silent, accept], 0).await;
}

async fn check_silent_member(scripts: &[fn(Call, Reply) -> Reply], silent: usize) {
    let members = Members::start(scripts).await;
    let etcd = members.connect().await;
    let end = Instant::now() + Duration::from_secs(6);
    let mut puts = 0;
    while Instant::now() < end {
        assert_all_succeed(spawn_puts(&etcd, 4)).await;
        puts += 4;
        sleep(Duration::from_millis(20)).await;
    }
    let server = &members.servers[silent];
    println!(
        "{puts} puts, {} dials of the silent member, {} logins there",
        server.accepted(),
        server.count(AUTHENTICATE)
    );
    assert_eq!(server.count(PUT), 0);
    assert_eq!(members.logins(), 1);
    let status = etcd.connectivity();
    assert_eq!(status[1 - silent].state, ConnectivityState::Ready);
    assert_ne!(status[silent].state, ConnectivityState::Ready);
}

/// If the only member does not respond to tokens, the client sends it no write, and at most one login per second.
#[tokio::test]
async fn only_member_is_not_ready_while_silent() {
    let members = Members::start(&[accept]).await;
    let etcd = members.connect().await;
    etcd.put("k", "v").await.unwrap();
    let server = &members.servers[0];
    for path in [PUT, STATUS] {
        server.on(path, |call| match call.metadata.get("token") {
            None => missing_token_reply(),
            Some(_) => Reply::hang(),
        });
    }
    server.close_connections();
    let started = Instant::now();
    until("the member is dialled repeatedly", || {
        server.accepted() >= 4
    })
    .await;
    let sent = server.count(PUT);
    let unsent = etcd.put("k", "v").timeout(Duration::from_secs(2)).await;
    assert_eq!(unsent.unwrap_err().outcome(), Outcome::NotSent);
    assert_eq!(server.count(PUT), sent);
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!(
        members.logins() <= 1 + seconds,
        "{} logins",
        members.logins()
    );
}
