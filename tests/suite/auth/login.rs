//! Logging in, and staying so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Credentials, ErrorKind, Outcome, testing};
use serde_json::json;
use testbed::{Cluster, ScriptedServer, Tokens};

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, PUT, all_succeed, ann, no_user, puts, secured, token, token_refused, user,
        with_tokens, written,
    },
    wait::until,
};

#[tokio::test]
async fn a_user_reads_and_writes_what_it_may_and_nothing_else() {
    let cluster = secured(Cluster::builder().members(3)).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let etcd = user(&cluster, "ann", "word").await;
    etcd.put("a/k", "v").await.unwrap();
    let denied = etcd.put("b/k", "v").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    assert_eq!(denied.outcome(), Outcome::Rejected);
    let stranger = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = stranger.get("a/k").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UserEmpty);
}

#[tokio::test]
async fn a_wrong_password_is_told_at_connect_and_never_shown() {
    let cluster = secured(Cluster::builder()).await;
    let builder = Client::builder(cluster.endpoints()).auth("root", "swordfish");
    assert!(!format!("{builder:?}").contains("swordfish"));
    let refused = builder.connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AuthFailed);
    assert!(!format!("{refused} {refused:?}").contains("swordfish"));
}

#[tokio::test]
async fn a_lazy_client_logs_in_before_its_first_request() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |_| token("first"));
    server.on(PUT, |_| written());
    let etcd = Client::builder([server.endpoint()])
        .auth("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 1);
    let put = &server.calls(PUT)[0];
    assert_eq!(put.metadata["token"], "first");
    assert!(
        !server.calls(AUTHENTICATE)[0].metadata.contains_key("token"),
        "a login carries no token"
    );
}

#[tokio::test]
async fn a_hundred_refused_calls_cause_one_login_and_none_goes_without_token() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        token(&format!("token-{}", call.nth)).after(Duration::from_millis(50))
    });
    server.on(PUT, |call| match call.metadata.get("token") {
        None => no_user(),
        // Every other one hears of it only when there is a new token already.
        Some(token) if token == "token-0" => {
            token_refused().after(Duration::from_millis(300 * (call.nth as u64 % 2)))
        }
        Some(_) => written(),
    });
    let etcd = ann(&server).await;
    all_succeed(puts(&etcd, 100)).await;
    assert_eq!(server.count(AUTHENTICATE), 2);
    assert!(
        server
            .calls(PUT)
            .iter()
            .all(|call| call.metadata.contains_key("token"))
    );
}

#[tokio::test]
async fn a_client_with_credentials_serves_a_cluster_that_wants_none_and_notices_when_it_does() {
    let cluster = Cluster::start(1).await;
    let etcd = user(&cluster, "root", "secret").await;
    etcd.put("k", "before").await.unwrap();
    cluster.enable_auth("root", "secret").await;
    etcd.put("k", "after").await.unwrap();
    cluster.api_any("/v3/auth/disable", json!({})).await;
    etcd.put("k", "at last").await.unwrap();
}

#[tokio::test]
async fn a_provider_is_asked_at_each_login_so_passwords_may_rotate() {
    let cluster = with_tokens(Tokens::Jwt(Duration::from_secs(60))).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let etcd = Client::builder(cluster.endpoints())
        .auth_provider(move || {
            let password = match counter.fetch_add(1, Ordering::SeqCst) {
                0 => "secret",
                _ => "rotated",
            };
            async move { Ok::<_, std::io::Error>(Credentials::password("root", password)) }
        })
        .connect()
        .await
        .unwrap();
    let change = json!({"name": "root", "password": "rotated"});
    cluster.api_any("/v3/auth/user/changepw", change).await;
    etcd.put("k", "v").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_provider_that_fails_is_told_as_such() {
    let server = ScriptedServer::start().await;
    let refused = Client::builder([server.endpoint()])
        .auth_provider(|| async { Err(std::io::Error::other("the vault is sealed")) })
        .connect()
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CredentialsUnavailable);
    assert!(refused.to_string().contains("the vault is sealed"));
}

#[tokio::test]
async fn a_crash_of_the_auth_actor_costs_no_call() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        token(&format!("token-{}", call.nth)).after(Duration::from_millis(100))
    });
    server.on(PUT, |call| match call.metadata.get("token") {
        Some(token) if token == "token-0" => token_refused(),
        _ => written(),
    });
    let etcd = ann(&server).await;
    let puts = puts(&etcd, 16);
    until("a login is under way", || server.count(AUTHENTICATE) == 2).await;
    testing::crash_auth(&etcd);
    all_succeed(puts).await;
    assert!(server.count(AUTHENTICATE) <= 4);
}
