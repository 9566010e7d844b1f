//! Logins that go wrong: credentials that cannot be had, a cluster that is slow, an actor that crashes on the way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Credentials, ErrorKind, Outcome, testing};
use serde_json::json;
use testbed::{Reply, ScriptedServer, Tokens, encode};
use tokio::time::sleep;

use crate::{
    support::{
        auth_cluster::{AUTHENTICATE, PUT, token, token_refused, with_tokens, written},
        wait::{hold, until},
    },
    watch::operations::next,
};

const LONG: Duration = Duration::from_secs(60);

type Given = Result<Credentials, std::io::Error>;

fn word() -> Credentials {
    Credentials::password("ann", "word")
}

/// A server that lets everybody in who logs in.
async fn server() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |_| token("first"));
    server.on(PUT, |_| written());
    server
}

#[tokio::test]
async fn a_provider_that_panics_costs_that_login_and_no_other() {
    let server = server().await;
    let asked = AtomicUsize::new(0);
    let etcd = Client::builder([server.endpoint()])
        .auth_provider(move || {
            let nth = asked.fetch_add(1, Ordering::SeqCst);
            assert!(nth != 0, "at once");
            async move {
                assert!(nth != 1, "later");
                Given::Ok(word())
            }
        })
        .connect_lazy()
        .await
        .unwrap();
    for _ in 0..2 {
        let refused = etcd.put("k", "v").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::CredentialsUnavailable);
        assert!(refused.to_string().contains("panicked"), "{refused}");
    }
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn a_cluster_that_is_slow_to_log_in_is_waited_for() {
    let server = server().await;
    server.on(AUTHENTICATE, |call| match call.nth {
        0 => Reply::hang(),
        1 => Reply::status(14, "etcdserver: request timed out"),
        _ => token("first"),
    });
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_millis(500))
        .auth_provider(|| async {
            sleep(Duration::from_millis(200)).await;
            Given::Ok(word())
        })
        .connect_lazy()
        .await
        .unwrap();
    etcd.put("k", "v").timeout(LONG).await.unwrap();
    assert!(server.count(AUTHENTICATE) >= 3);
}

#[tokio::test]
async fn a_call_that_cannot_wait_for_a_login_was_not_sent() {
    let server = server().await;
    server.on(AUTHENTICATE, |_| Reply::hang());
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_millis(300))
        .auth("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    let late = etcd.put("k", "v").timeout(Duration::from_secs(1)).await;
    let late = late.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
    assert_eq!(late.outcome(), Outcome::NotSent);
    assert!(late.to_string().contains("log in"), "{late}");
    // Nobody to log in at is another matter.
    drop(server);
    let lost = etcd.put("k", "v").timeout(Duration::from_secs(1)).await;
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_login_that_hangs_ends_with_the_crash_of_its_actor() {
    let server = server().await;
    server.on(PUT, |call| match call.metadata.get("token") {
        Some(token) if token == "first" => token_refused(),
        _ => written(),
    });
    server.on(AUTHENTICATE, |call| match call.nth {
        0 => token("first"),
        1 => Reply::hang(),
        _ => token("second"),
    });
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(LONG)
        .auth("ann", "word")
        .connect()
        .await
        .unwrap();
    let put = tokio::spawn(etcd.put("k", "v").into_future());
    until("a login hangs", || server.count(AUTHENTICATE) == 2).await;
    testing::crash_auth(&etcd);
    put.await.unwrap().unwrap();
    until("it was given up", || server.cancelled() == 1).await;
    assert_eq!(server.count(AUTHENTICATE), 3);
}

#[test]
fn a_client_that_is_dropped_forgets_how_it_logged_in() {
    actix_rt::System::new().block_on(async {
        let server = server().await;
        let secret = Arc::new(());
        let kept = Arc::downgrade(&secret);
        let etcd = Client::builder([server.endpoint()])
            // It is to be replaced one day, which is no reason to stay.
            .token_lifetime(Duration::from_secs(600))
            .auth_provider(move || {
                let kept = secret.clone();
                async move {
                    drop(kept);
                    Given::Ok(word())
                }
            })
            .on_current_arbiter()
            .connect()
            .await
            .unwrap();
        etcd.put("k", "v").await.unwrap();
        drop(etcd);
        until("it is forgotten", || kept.strong_count() == 0).await;
    });
}

#[tokio::test]
async fn a_watch_waits_for_credentials_that_cannot_be_had_for_a_while() {
    let ttl = Duration::from_secs(1);
    let cluster = with_tokens(Tokens::Simple(ttl)).await;
    let (sealed, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (vault, counter) = (sealed.clone(), asked.clone());
    let etcd = Client::builder(cluster.endpoints())
        .auth_provider(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let sealed = vault.load(Ordering::SeqCst);
            async move {
                if sealed {
                    return Err(std::io::Error::other("the vault is sealed"));
                }
                Ok(Credentials::password("root", "secret"))
            }
        })
        .connect()
        .await
        .unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    sealed.store(true, Ordering::SeqCst);
    let before = asked.load(Ordering::SeqCst);
    hold(ttl * 2 + Duration::from_millis(500)).await;
    cluster.member(0).client_link().reset_now();
    until("it is asked again and again", || {
        asked.load(Ordering::SeqCst) >= before + 3
    })
    .await;
    let early = etcd.watch("k").await.unwrap_err();
    assert!(early.to_string().contains("the vault is sealed"), "{early}");
    sealed.store(false, Ordering::SeqCst);
    let put = json!({"key": encode("k"), "value": encode("v")});
    cluster.api_any("/v3/kv/put", put).await;
    assert_eq!(next(&mut watch).await.1, ["k"]);
}
