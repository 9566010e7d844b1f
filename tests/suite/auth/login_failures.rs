//! Logins that fail or hang: unavailable credentials, a slow cluster, a crash of the auth actor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Credentials, ErrorKind, Outcome, test_faults};
use serde_json::json;
use testbed::{Reply, ScriptedServer, Tokens, encode};
use tokio::time::sleep;

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, invalid_token_reply, login_reply, rare_probes, start_with_tokens,
    },
    scripted_put::{PUT, put_reply},
    wait::{hold, until},
    watch_items::next_change,
};

const LONG_TIMEOUT: Duration = Duration::from_secs(60);

type ProviderResult = Result<Credentials, std::io::Error>;

fn ann_credentials() -> Credentials {
    Credentials::password("ann", "word")
}

/// Starts a server that accepts every login and every put.
async fn start_server() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |_| login_reply("first"));
    server.on(PUT, |_| put_reply());
    server
}

#[tokio::test]
async fn panicking_provider_fails_only_its_login() {
    let server = start_server().await;
    let provider_calls = AtomicUsize::new(0);
    let etcd = Client::builder([server.endpoint()])
        .credentials_provider(move || {
            let nth = provider_calls.fetch_add(1, Ordering::SeqCst);
            assert!(nth != 0, "panic in the provider");
            async move {
                assert!(nth != 1, "panic in the provider's future");
                ProviderResult::Ok(ann_credentials())
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
async fn slow_login_is_retried() {
    let server = start_server().await;
    server.on(AUTHENTICATE, |call| match call.nth {
        0 => Reply::hang(),
        1 => Reply::status(14, "etcdserver: request timed out"),
        _ => login_reply("first"),
    });
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_millis(500))
        .credentials_provider(|| async {
            sleep(Duration::from_millis(200)).await;
            ProviderResult::Ok(ann_credentials())
        })
        .connect_lazy()
        .await
        .unwrap();
    etcd.put("k", "v").timeout(LONG_TIMEOUT).await.unwrap();
    assert!(server.count(AUTHENTICATE) >= 3);
}

#[tokio::test]
async fn call_timed_out_during_login_was_not_sent() {
    let server = start_server().await;
    server.on(AUTHENTICATE, |_| Reply::hang());
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_millis(300))
        .credentials("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    let timed_out = etcd.put("k", "v").timeout(Duration::from_secs(1)).await;
    let timed_out = timed_out.unwrap_err();
    assert_eq!(timed_out.kind(), ErrorKind::DeadlineExceeded, "{timed_out}");
    assert_eq!(timed_out.outcome(), Outcome::NotSent);
    assert!(timed_out.to_string().contains("login"), "{timed_out}");
    // Without any server, the error is another one.
    drop(server);
    let unavailable = etcd.put("k", "v").timeout(Duration::from_secs(1)).await;
    assert_eq!(unavailable.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn auth_actor_crash_cancels_hanging_login() {
    let server = start_server().await;
    server.on(PUT, |call| match call.metadata.get("token") {
        Some(token) if token == "first" => invalid_token_reply(),
        _ => put_reply(),
    });
    server.on(AUTHENTICATE, |call| match call.nth {
        0 => login_reply("first"),
        1 => Reply::hang(),
        _ => login_reply("second"),
    });
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(LONG_TIMEOUT)
        .credentials("ann", "word")
        .connect()
        .await
        .unwrap();
    let put = tokio::spawn(etcd.put("k", "v").into_future());
    until("a login hangs", || server.count(AUTHENTICATE) == 2).await;
    test_faults::crash_auth(&etcd);
    put.await.unwrap().unwrap();
    until("the hanging login is cancelled", || server.cancelled() == 1).await;
    assert_eq!(server.count(AUTHENTICATE), 3);
}

#[test]
fn dropped_client_drops_its_provider() {
    actix_rt::System::new().block_on(async {
        let server = start_server().await;
        let secret = Arc::new(());
        let provider = Arc::downgrade(&secret);
        let etcd = Client::builder([server.endpoint()])
            // The scheduled renewal of the token must not keep the provider alive.
            .token_lifetime(Duration::from_secs(600))
            .credentials_provider(move || {
                let captured = secret.clone();
                async move {
                    drop(captured);
                    ProviderResult::Ok(ann_credentials())
                }
            })
            .on_current_arbiter()
            .connect()
            .await
            .unwrap();
        etcd.put("k", "v").await.unwrap();
        drop(etcd);
        until("the provider is dropped", || provider.strong_count() == 0).await;
    });
}

#[tokio::test]
async fn watch_waits_for_unavailable_credentials() {
    let ttl = Duration::from_secs(1);
    let cluster = start_with_tokens(Tokens::Simple(ttl)).await;
    let (sealed, provider_calls) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_sealed, counter) = (sealed.clone(), provider_calls.clone());
    let etcd = Client::builder(cluster.endpoints())
        .credentials_provider(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let sealed = is_sealed.load(Ordering::SeqCst);
            async move {
                if sealed {
                    return Err(std::io::Error::other("the vault is sealed"));
                }
                Ok(Credentials::password("root", "secret"))
            }
        })
        .liveness(rare_probes())
        .connect()
        .await
        .unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    sealed.store(true, Ordering::SeqCst);
    let before = provider_calls.load(Ordering::SeqCst);
    hold(ttl * 2 + Duration::from_millis(500)).await;
    cluster.member(0).client_link().reset_now();
    until("the provider is called repeatedly", || {
        provider_calls.load(Ordering::SeqCst) >= before + 3
    })
    .await;
    let refused = etcd.watch("k").await.unwrap_err();
    assert!(
        refused.to_string().contains("the vault is sealed"),
        "{refused}"
    );
    sealed.store(false, Ordering::SeqCst);
    let put = json!({"key": encode("k"), "value": encode("v")});
    cluster.api_any("/v3/kv/put", put).await;
    assert_eq!(next_change(&mut watch).await.1, ["k"]);
}
