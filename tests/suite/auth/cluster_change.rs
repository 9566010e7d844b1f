//! Endpoints that are redirected to another cluster, which accepts none of the tokens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ErrorKind};
use testbed::{Call, Cluster, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::task::JoinHandle;

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, assert_all_succeed, connect_as_ann, connect_as_root, login_count,
        login_reply, missing_token_reply, spawn_puts, start_with_auth,
    },
    scripted_put::{PUT, put_reply},
    wait::{until, until_async},
    watch_server::WATCH,
};

async fn start_two_clusters() -> (Cluster, Cluster) {
    (
        start_with_auth(Cluster::builder()).await,
        start_with_auth(Cluster::builder()).await,
    )
}

/// Connects a client that may follow its endpoints to another cluster.
async fn connect_following(cluster: &Cluster) -> Client {
    Client::builder(cluster.endpoints())
        .credentials("root", "secret")
        .follow_cluster_change()
        .connect()
        .await
        .unwrap()
}

/// Spawns tasks that read until `stop` is set and panic at the first error.
fn spawn_readers(etcd: &Client, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    (0..32)
        .map(|_| {
            let (etcd, stop) = (etcd.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    etcd.get("k").await.unwrap();
                }
            })
        })
        .collect()
}

/// A client that keeps its old token fails with "user name is empty" forever.
#[tokio::test]
async fn redirected_address_costs_one_login() {
    let (first, second) = start_two_clusters().await;
    let etcd = connect_following(&first).await;
    let first_id = etcd.put("k", "v").await.unwrap().header.cluster_id;
    assert_eq!(etcd.cluster_id(), Some(first_id));
    let before = login_count(&second).await;
    let stop = Arc::new(AtomicBool::new(false));
    let readers = spawn_readers(&etcd, &stop);
    first.member(0).redirect_clients_to(&second.member(0));
    until("the client reports the other cluster", || {
        etcd.cluster_id() != Some(first_id)
    })
    .await;
    let found = etcd.get("k").await.unwrap();
    assert!(found.kvs.is_empty());
    assert_eq!(etcd.cluster_id(), Some(found.header.cluster_id));
    etcd.put("k", "there").await.unwrap();
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(login_count(&second).await - before, 1);
}

#[tokio::test]
async fn redirected_address_fails_until_cluster_returns() {
    let (first, second) = start_two_clusters().await;
    let etcd = connect_as_root(&first).await;
    let first_id = etcd.put("k", "v").await.unwrap().header.cluster_id;
    first.member(0).redirect_clients_to(&second.member(0));
    until_async("reads fail", async || etcd.get("k").await.is_err()).await;
    let refused = etcd.get("k").await.unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::ClusterChanged, "{text}");
    assert!(text.contains(&format!("{first_id:x}")), "{text}");
    assert_eq!(etcd.cluster_id(), Some(first_id));
    first.member(0).redirect_clients_to(&first.member(0));
    until_async("reads succeed again", async || {
        etcd.get("k").await.is_ok_and(|found| found.kvs.len() == 1)
    })
    .await;
}

#[tokio::test]
async fn endpoints_of_other_cluster_cost_one_login() {
    let (first, second) = start_two_clusters().await;
    let etcd = connect_following(&first).await;
    let first_id = etcd.put("k", "v").await.unwrap().header.cluster_id;
    assert_eq!(etcd.cluster_id(), Some(first_id));
    let before = login_count(&second).await;
    etcd.set_endpoints(second.endpoints()).await.unwrap();
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let etcd = etcd.clone();
            tokio::spawn(async move { etcd.get("k").await })
        })
        .collect();
    for call in calls {
        let found = call.await.unwrap().unwrap();
        assert!(found.kvs.is_empty());
        assert_eq!(etcd.cluster_id(), Some(found.header.cluster_id));
        assert_ne!(found.header.cluster_id, first_id);
    }
    assert_eq!(login_count(&second).await - before, 1);
}

/// A simple token contains a raft index. A member of another cluster waits until it has reached that index.
#[tokio::test]
async fn token_that_makes_requests_hang_is_replaced() {
    let old_server = ScriptedServer::start().await;
    old_server.on(AUTHENTICATE, |_| login_reply("old"));
    old_server.on(PUT, |_| put_reply());
    let etcd = connect_as_ann(&old_server).await;
    let new_server = ScriptedServer::start().await;
    let reply = |call: Call, success: Reply| match call.metadata.get("token") {
        None => missing_token_reply(),
        Some(token) if token == "old" => Reply::hang(),
        Some(_) => success,
    };
    new_server.on(STATUS, move |call| {
        reply(call, Reply::message(&StatusResponse::healthy()))
    });
    new_server.on(PUT, move |call| reply(call, put_reply()));
    new_server.on(AUTHENTICATE, |_| login_reply("new"));
    etcd.set_endpoints([new_server.endpoint()]).await.unwrap();
    assert_all_succeed(spawn_puts(&etcd, 16)).await;
    assert_eq!(new_server.count(AUTHENTICATE), 1);
}

/// While the client replaces a token that makes every member hang, no request is sent without a token.
#[tokio::test]
async fn requests_wait_for_replacement_token() {
    let accepting = ScriptedServer::start().await;
    accepting.on(AUTHENTICATE, |_| login_reply("old"));
    // Without hedging, each login is one request.
    let builder = Client::builder([accepting.endpoint()]).credentials("ann", "word");
    let etcd = builder.hedging(false).connect().await.unwrap();
    let hanging = ScriptedServer::start().await;
    hanging.on(STATUS, |call| match call.metadata.get("token") {
        Some(token) if token == "old" => Reply::hang(),
        _ => Reply::message(&StatusResponse::healthy()),
    });
    hanging.on(AUTHENTICATE, |_| {
        login_reply("new").after(Duration::from_millis(700))
    });
    hanging.on(PUT, |_| put_reply());
    hanging.on(WATCH, |_| Reply::hang());
    etcd.set_endpoints([hanging.endpoint()]).await.unwrap();
    until("another token is requested", || {
        hanging.count(AUTHENTICATE) == 1
    })
    .await;
    let watch = etcd.watch("k");
    let watch = tokio::spawn(async move { watch.await.is_ok() });
    assert_all_succeed(spawn_puts(&etcd, 16)).await;
    until("the watch request has arrived", || hanging.count(WATCH) > 0).await;
    for call in [hanging.calls(WATCH), hanging.calls(PUT)].concat() {
        assert_eq!(call.metadata["token"], "new", "{}", call.path);
    }
    assert_eq!(hanging.count(AUTHENTICATE), 1);
    watch.abort();
}

#[tokio::test]
async fn endpoints_of_other_cluster_are_refused() {
    let (first, second) = start_two_clusters().await;
    let etcd = connect_as_root(&first).await;
    let first_id = etcd.put("k", "v").await.unwrap().header.cluster_id;
    let before = login_count(&second).await;
    etcd.set_endpoints(second.endpoints()).await.unwrap();
    let refused = etcd.get("k").await.unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::ClusterChanged, "{text}");
    assert!(text.contains(&format!("{first_id:x}")), "{text}");
    assert!(login_count(&second).await - before <= 1);
}
