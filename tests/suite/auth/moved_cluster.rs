//! Addresses that lead to another cluster all of a sudden, which knows none of the tokens.

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
        AUTHENTICATE, PUT, all_succeed, ann, logins, no_user, puts, root, secured, token, written,
    },
    wait::{until, until_async},
};

const WATCH: &str = "/etcdserverpb.Watch/Watch";

async fn two_clusters() -> (Cluster, Cluster) {
    (
        secured(Cluster::builder()).await,
        secured(Cluster::builder()).await,
    )
}

/// A client that may follow its endpoints to another cluster.
async fn follower(cluster: &Cluster) -> Client {
    Client::builder(cluster.endpoints())
        .auth("root", "secret")
        .follow_cluster_change()
        .connect()
        .await
        .unwrap()
}

/// Tasks that read on and on, and fail at the first error.
fn readers(etcd: &Client, enough: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    (0..32)
        .map(|_| {
            let (etcd, enough) = (etcd.clone(), enough.clone());
            tokio::spawn(async move {
                while !enough.load(Ordering::SeqCst) {
                    etcd.get("k").await.unwrap();
                }
            })
        })
        .collect()
}

/// The case from the field: the official client said "user name is empty" for ever.
#[tokio::test]
async fn one_address_that_leads_to_another_cluster_costs_one_login_and_no_read() {
    let (first, second) = two_clusters().await;
    let etcd = follower(&first).await;
    let known = etcd.put("k", "v").await.unwrap().header.cluster_id;
    assert_eq!(etcd.cluster_id(), Some(known));
    let before = logins(&second).await;
    let enough = Arc::new(AtomicBool::new(false));
    let readers = readers(&etcd, &enough);
    first.member(0).redirect_clients_to(&second.member(0));
    until("the other cluster is told", || {
        etcd.cluster_id() != Some(known)
    })
    .await;
    let found = etcd.get("k").await.unwrap();
    assert!(found.kvs.is_empty());
    assert_eq!(etcd.cluster_id(), Some(found.header.cluster_id));
    etcd.put("k", "there").await.unwrap();
    enough.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(logins(&second).await - before, 1);
}

#[tokio::test]
async fn who_may_not_follow_is_told_both_clusters_and_goes_on_when_its_own_is_back() {
    let (first, second) = two_clusters().await;
    let etcd = root(&first).await;
    let known = etcd.put("k", "v").await.unwrap().header.cluster_id;
    first.member(0).redirect_clients_to(&second.member(0));
    until_async("it is refused", async || etcd.get("k").await.is_err()).await;
    let refused = etcd.get("k").await.unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::ClusterChanged, "{text}");
    assert!(text.contains(&format!("{known:x}")), "{text}");
    assert_eq!(etcd.cluster_id(), Some(known));
    first.member(0).redirect_clients_to(&first.member(0));
    until_async("its own is back", async || {
        etcd.get("k").await.is_ok_and(|found| found.kvs.len() == 1)
    })
    .await;
}

/// Endpoints whose names now point to another cluster, which knows none of the tokens.
#[tokio::test]
async fn a_client_that_may_follow_logs_in_once_at_the_cluster_that_took_the_place_of_its_own() {
    let (first, second) = two_clusters().await;
    let etcd = follower(&first).await;
    let known = etcd.put("k", "v").await.unwrap().header.cluster_id;
    assert_eq!(etcd.cluster_id(), Some(known));
    let before = logins(&second).await;
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
        assert_ne!(found.header.cluster_id, known);
    }
    assert_eq!(logins(&second).await - before, 1);
}

/// etcd's simple tokens name an index. A member of another cluster that has not got there yet waits for it.
#[tokio::test]
async fn a_token_that_a_member_neither_takes_nor_refuses_is_replaced() {
    let before = ScriptedServer::start().await;
    before.on(AUTHENTICATE, |_| token("old"));
    before.on(PUT, |_| written());
    let etcd = ann(&before).await;
    let after = ScriptedServer::start().await;
    let answer = |call: Call, good: Reply| match call.metadata.get("token") {
        None => no_user(),
        Some(token) if token == "old" => Reply::hang(),
        Some(_) => good,
    };
    after.on(STATUS, move |call| {
        answer(call, Reply::message(&StatusResponse::healthy()))
    });
    after.on(PUT, move |call| answer(call, written()));
    after.on(AUTHENTICATE, |_| token("new"));
    etcd.set_endpoints([after.endpoint()]).await.unwrap();
    all_succeed(puts(&etcd, 16)).await;
    assert_eq!(after.count(AUTHENTICATE), 1);
}

/// A member that is slow to know a token costs nobody the token: nothing is asked without one.
#[tokio::test]
async fn a_token_that_is_given_up_is_not_taken_away_before_there_is_another() {
    let knows = ScriptedServer::start().await;
    knows.on(AUTHENTICATE, |_| token("old"));
    let etcd = ann(&knows).await;
    let ignores = ScriptedServer::start().await;
    ignores.on(STATUS, |call| match call.metadata.get("token") {
        Some(token) if token == "old" => Reply::hang(),
        _ => Reply::message(&StatusResponse::healthy()),
    });
    for server in [&knows, &ignores] {
        server.on(AUTHENTICATE, |_| {
            token("new").after(Duration::from_millis(700))
        });
        server.on(PUT, |_| written());
        server.on(WATCH, |_| Reply::hang());
    }
    let both = [knows.endpoint(), ignores.endpoint()];
    etcd.set_endpoints(both).await.unwrap();
    let logins = || knows.count(AUTHENTICATE) + ignores.count(AUTHENTICATE);
    until("another token is asked for", || logins() == 2).await;
    let watch = etcd.watch("k");
    let watch = tokio::spawn(async move { watch.await.is_ok() });
    all_succeed(puts(&etcd, 16)).await;
    let watches = || [knows.calls(WATCH), ignores.calls(WATCH)].concat();
    until("the watch is there", || !watches().is_empty()).await;
    let puts = [knows.calls(PUT), ignores.calls(PUT)].concat();
    for call in watches().iter().chain(&puts) {
        assert_eq!(call.metadata["token"], "new", "{}", call.path);
    }
    assert_eq!(logins(), 2);
    watch.abort();
}

#[tokio::test]
async fn endpoints_that_lead_to_another_cluster_are_told_with_both_ids() {
    let (first, second) = two_clusters().await;
    let etcd = root(&first).await;
    let known = etcd.put("k", "v").await.unwrap().header.cluster_id;
    let before = logins(&second).await;
    etcd.set_endpoints(second.endpoints()).await.unwrap();
    let refused = etcd.get("k").await.unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::ClusterChanged, "{text}");
    assert!(text.contains(&format!("{known:x}")), "{text}");
    assert!(logins(&second).await - before <= 1);
}
