//! Watches whose tokens end, and users who lose their rights.

use std::time::Duration;

use actix_etcd::{Client, WatchEnd, roles::Permission};
use serde_json::json;
use testbed::{Cluster, Tokens, encode};

use crate::{
    support::{
        auth_cluster::{root, secured, user, with_tokens},
        wait::hold,
    },
    watch::operations::{last_item, next},
};

#[tokio::test]
async fn a_watch_that_was_cut_off_after_its_token_ended_goes_on() {
    let ttl = Duration::from_secs(1);
    // One that the client cannot know the end of.
    let cluster = with_tokens(Tokens::Simple(ttl)).await;
    let etcd = root(&cluster).await;
    let mut watch = etcd.watch("k").await.unwrap();
    for value in ["first", "second"] {
        // No call of the client notices that the token has ended: the watch has to.
        hold(ttl * 2 + Duration::from_millis(500)).await;
        cluster.member(0).client_link().reset_now();
        let put = json!({"key": encode("k"), "value": encode(value)});
        cluster.api_any("/v3/kv/put", put).await;
        assert_eq!(next(&mut watch).await.1, ["k"]);
    }
}

#[tokio::test]
async fn a_lazy_client_logs_in_for_its_first_watch() {
    let cluster = secured(Cluster::builder()).await;
    let etcd = Client::builder(cluster.endpoints())
        .auth("root", "secret")
        .connect_lazy()
        .await
        .unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(next(&mut watch).await.1, ["k"]);
}

#[tokio::test]
async fn without_credentials_or_with_wrong_ones_a_watch_says_so() {
    let cluster = secured(Cluster::builder()).await;
    let stranger = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = stranger.watch("k").await.unwrap_err();
    assert!(refused.to_string().contains("user"), "{refused}");
    let wrong = Client::builder(cluster.endpoints())
        .auth("root", "wrong")
        .connect_lazy()
        .await
        .unwrap();
    let refused = wrong.watch("k").await.unwrap_err();
    assert!(refused.to_string().contains("password"), "{refused}");
}

#[tokio::test]
async fn who_loses_a_permission_loses_that_watch_and_no_other() {
    let cluster = secured(Cluster::builder()).await;
    let root = root(&cluster).await;
    root.users().add("ann", "word").await.unwrap();
    root.roles().add("r").await.unwrap();
    for prefix in ["a/", "b/"] {
        let permission = Permission::read(prefix).prefix();
        root.roles().grant("r", permission).await.unwrap();
    }
    root.users().grant_role("ann", "r").await.unwrap();
    let ann = user(&cluster, "ann", "word").await;
    let mut lost = ann.watch("a/").prefix().await.unwrap();
    let mut kept = ann.watch("b/").prefix().await.unwrap();
    let permission = Permission::read("a/").prefix();
    root.roles().revoke("r", permission).await.unwrap();
    // etcd asks for the right when a watch is created, so it shows when both come anew.
    cluster.member(0).client_link().reset_now();
    let end = last_item(&mut lost).await;
    assert!(matches!(end, WatchEnd::PermissionDenied(_)), "{end}");
    root.put("b/k", "v").await.unwrap();
    assert_eq!(next(&mut kept).await.1, ["b/k"]);
}
