//! Logging in, and logging in again after a token is refused.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Credentials, ErrorKind, Outcome, test_faults};
use serde_json::json;
use testbed::{Cluster, ScriptedServer, Tokens};

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, assert_all_succeed, connect_as, connect_as_ann, invalid_token_reply,
        login_reply, missing_token_reply, spawn_puts, start_with_auth, start_with_tokens,
    },
    scripted_put::{PUT, put_reply},
    wait::until,
};

#[tokio::test]
async fn user_accesses_only_permitted_keys() {
    let cluster = start_with_auth(Cluster::builder().members(3)).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let etcd = connect_as(&cluster, "ann", "word").await;
    etcd.put("a/k", "v").await.unwrap();
    let denied = etcd.put("b/k", "v").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    assert_eq!(denied.outcome(), Outcome::Rejected);
    let anonymous = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = anonymous.get("a/k").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UserEmpty);
}

#[tokio::test]
async fn wrong_password_fails_connect_and_stays_hidden() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let builder = Client::builder(cluster.endpoints()).credentials("root", "swordfish");
    assert!(!format!("{builder:?}").contains("swordfish"));
    let refused = builder.connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AuthFailed);
    assert!(!format!("{refused} {refused:?}").contains("swordfish"));
}

#[tokio::test]
async fn lazy_client_logs_in_before_first_request() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |_| login_reply("first"));
    server.on(PUT, |_| put_reply());
    let etcd = Client::builder([server.endpoint()])
        .credentials("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 1);
    let put = &server.calls(PUT)[0];
    assert_eq!(put.metadata["token"], "first");
    assert!(
        !server.calls(AUTHENTICATE)[0].metadata.contains_key("token"),
        "a login must not carry a token"
    );
}

#[tokio::test]
async fn concurrent_refused_calls_cause_one_login() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        login_reply(&format!("token-{}", call.nth)).after(Duration::from_millis(50))
    });
    server.on(PUT, |call| match call.metadata.get("token") {
        None => missing_token_reply(),
        // Every other call is refused only after the client has a new token.
        Some(token) if token == "token-0" => {
            invalid_token_reply().after(Duration::from_millis(300 * (call.nth as u64 % 2)))
        }
        Some(_) => put_reply(),
    });
    let etcd = connect_as_ann(&server).await;
    assert_all_succeed(spawn_puts(&etcd, 100)).await;
    assert_eq!(server.count(AUTHENTICATE), 2);
    assert!(
        server
            .calls(PUT)
            .iter()
            .all(|call| call.metadata.contains_key("token"))
    );
}

#[tokio::test]
async fn client_survives_authentication_being_enabled_and_disabled() {
    let cluster = Cluster::start(1).await;
    let etcd = connect_as(&cluster, "root", "secret").await;
    etcd.put("k", "before").await.unwrap();
    cluster.enable_auth("root", "secret").await;
    etcd.put("k", "after").await.unwrap();
    cluster.api_any("/v3/auth/disable", json!({})).await;
    etcd.put("k", "disabled again").await.unwrap();
}

#[tokio::test]
async fn provider_is_called_for_each_login() {
    let cluster = start_with_tokens(Tokens::Jwt(Duration::from_secs(60))).await;
    let provider_calls = Arc::new(AtomicUsize::new(0));
    let counter = provider_calls.clone();
    let etcd = Client::builder(cluster.endpoints())
        .credentials_provider(move || {
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
    assert_eq!(provider_calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn failing_provider_fails_connect() {
    let server = ScriptedServer::start().await;
    let refused = Client::builder([server.endpoint()])
        .credentials_provider(|| async { Err(std::io::Error::other("the vault is sealed")) })
        .connect()
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CredentialsUnavailable);
    assert!(refused.to_string().contains("the vault is sealed"));
}

#[tokio::test]
async fn auth_actor_crash_costs_no_call() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        login_reply(&format!("token-{}", call.nth)).after(Duration::from_millis(100))
    });
    server.on(PUT, |call| match call.metadata.get("token") {
        Some(token) if token == "token-0" => invalid_token_reply(),
        _ => put_reply(),
    });
    let etcd = connect_as_ann(&server).await;
    let puts = spawn_puts(&etcd, 16);
    until("a login is in flight", || server.count(AUTHENTICATE) == 2).await;
    test_faults::crash_auth(&etcd);
    assert_all_succeed(puts).await;
    assert!(server.count(AUTHENTICATE) <= 4);
}
