//! Watches with expired tokens, without valid credentials, and after a permission is revoked.

use std::time::Duration;

use actix_etcd::{Client, auth::roles::Permission, watch::WatchEnd};
use serde_json::json;
use testbed::{Cluster, Tokens, encode};

use crate::support::{
    auth_cluster::{
        connect_as, connect_as_root, connect_with_rare_probes, start_with_auth, start_with_tokens,
    },
    wait::hold,
    watch_items::{next_change, read_to_end},
};

#[tokio::test]
async fn watch_resumes_after_token_expiry() {
    let ttl = Duration::from_secs(1);
    // The client does not know the expiry of simple tokens.
    let cluster = start_with_tokens(Tokens::Simple(ttl)).await;
    let etcd = connect_with_rare_probes(&cluster, "root", "secret").await;
    let mut watch = etcd.watch("k").await.unwrap();
    for value in ["first", "second"] {
        // No other request detects the expired token: the watch must.
        hold(ttl * 2 + Duration::from_millis(500)).await;
        cluster.member(0).client_link().reset_now();
        let put = json!({"key": encode("k"), "value": encode(value)});
        cluster.api_any("/v3/kv/put", put).await;
        assert_eq!(next_change(&mut watch).await.1, ["k"]);
    }
}

#[tokio::test]
async fn lazy_client_logs_in_for_first_watch() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let etcd = Client::builder(cluster.endpoints())
        .credentials("root", "secret")
        .connect_lazy()
        .await
        .unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(next_change(&mut watch).await.1, ["k"]);
}

#[tokio::test]
async fn watch_without_valid_credentials_fails() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let anonymous = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = anonymous.watch("k").await.unwrap_err();
    assert!(refused.to_string().contains("user"), "{refused}");
    let wrong_password = Client::builder(cluster.endpoints())
        .credentials("root", "wrong")
        .connect_lazy()
        .await
        .unwrap();
    let refused = wrong_password.watch("k").await.unwrap_err();
    assert!(refused.to_string().contains("password"), "{refused}");
}

#[tokio::test]
async fn revoked_permission_ends_only_its_watch() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let root = connect_as_root(&cluster).await;
    root.users().add("ann", "word").await.unwrap();
    root.roles().add("r").await.unwrap();
    for prefix in ["a/", "b/"] {
        let permission = Permission::read(prefix).prefix();
        root.roles().grant("r", permission).await.unwrap();
    }
    root.users().grant_role("ann", "r").await.unwrap();
    let ann = connect_as(&cluster, "ann", "word").await;
    let mut revoked = ann.watch("a/").prefix().await.unwrap();
    let mut permitted = ann.watch("b/").prefix().await.unwrap();
    let permission = Permission::read("a/").prefix();
    root.roles().revoke("r", permission).await.unwrap();
    // etcd checks permissions when a watch is created: after the reset, both watches are created again.
    cluster.member(0).client_link().reset_now();
    let end = read_to_end(&mut revoked).await;
    assert!(matches!(end, WatchEnd::PermissionDenied(_)), "{end}");
    root.put("b/k", "v").await.unwrap();
    assert_eq!(next_change(&mut permitted).await.1, ["b/k"]);
}
