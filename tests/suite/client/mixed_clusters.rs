//! Endpoints of more than one cluster: which cluster a client chooses, and when it follows another one.

use std::time::Duration;

use actix_etcd::{
    Client, Error, ErrorKind, Outcome,
    lease::LeaseLost,
    proto,
    watch::{WatchEnd, WatchEvent},
};
use testbed::{Cluster, Fault, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::time::timeout;

use crate::support::{
    auth_cluster::start_with_auth,
    scripted_put::PUT,
    wait::{TEST_TIMEOUT, until, until_async},
};

/// Starts two clusters of one member each.
async fn start_two_clusters() -> (Cluster, Cluster) {
    (Cluster::start(1).await, Cluster::start(1).await)
}

/// Returns the id of a cluster.
async fn cluster_id(cluster: &Cluster) -> u64 {
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.cluster_id().unwrap()
}

/// Returns the number of keys in a cluster.
async fn key_count(cluster: &Cluster) -> i64 {
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let keys = etcd.get("").prefix().count_only().await;
    keys.unwrap().count
}

/// Returns whether an endpoint is refused because it leads to another cluster.
fn is_refused(etcd: &Client, endpoint: &str) -> bool {
    etcd.connectivity().iter().any(|status| {
        let error = status.last_error.as_ref();
        status.endpoint == endpoint
            && error.is_some_and(|error| error.kind() == ErrorKind::ClusterChanged)
    })
}

/// Asserts that an error names both endpoints with the ids of their clusters.
fn assert_names_both(error: &Error, reports: [(&str, u64); 2]) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::MixedClusters, "{text}");
    assert_eq!(error.outcome(), Outcome::NotSent, "{text}");
    for (endpoint, id) in reports {
        assert!(text.contains(&format!("{endpoint}: {id:x}")), "{text}");
    }
}

#[tokio::test]
async fn connect_to_two_clusters_fails() {
    let (first, second) = start_two_clusters().await;
    let endpoints = [first.endpoints(), second.endpoints()].concat();
    let reports = [
        (&*endpoints[0], cluster_id(&first).await),
        (&*endpoints[1], cluster_id(&second).await),
    ];
    for _ in 0..5 {
        let error = Client::connect(endpoints.clone()).await.unwrap_err();
        assert_names_both(&error, reports);
    }
    let following = Client::builder(endpoints.clone()).follow_cluster_change();
    assert_names_both(&following.connect().await.unwrap_err(), reports);
}

/// With authentication enabled, a `Status` request without a token does not show the cluster id.
#[tokio::test]
async fn connect_to_two_clusters_with_auth_fails() {
    let first = start_with_auth(Cluster::builder()).await;
    let second = start_with_auth(Cluster::builder()).await;
    let endpoints = [first.endpoints(), second.endpoints()].concat();
    for _ in 0..3 {
        let builder = Client::builder(endpoints.clone()).credentials("root", "secret");
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MixedClusters, "{error}");
        for endpoint in &endpoints {
            assert!(error.to_string().contains(endpoint), "{error}");
        }
    }
}

#[tokio::test]
async fn lazy_client_fails_until_one_cluster_is_left() {
    let (first, second) = start_two_clusters().await;
    let endpoints = [first.endpoints(), second.endpoints()].concat();
    let reports = [
        (&*endpoints[0], cluster_id(&first).await),
        (&*endpoints[1], cluster_id(&second).await),
    ];
    let builder = Client::builder(endpoints.clone());
    let etcd = builder.connect_lazy().await.unwrap();
    let put = etcd.put("k", "v").timeout(Duration::from_secs(1));
    assert_names_both(&put.await.unwrap_err(), reports);
    assert_eq!(etcd.cluster_id(), None);
    etcd.set_endpoints(second.endpoints()).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(etcd.cluster_id(), Some(reports[1].1));
    assert_eq!(key_count(&first).await, 0);
}

/// The member of the other cluster responds first.
#[tokio::test]
async fn minority_of_other_cluster_is_refused() {
    let (ours, theirs) = (Cluster::start(3).await, Cluster::start(1).await);
    for member in ours.members() {
        let delay = Fault::Delay(Duration::from_millis(20));
        member.client_link().set(delay);
    }
    let foreign = theirs.endpoints().remove(0);
    let endpoints = [vec![foreign.clone()], ours.endpoints()[..2].to_vec()].concat();
    for _ in 0..3 {
        let etcd = Client::connect(endpoints.clone()).await.unwrap();
        assert_eq!(etcd.cluster_id(), Some(cluster_id(&ours).await));
        until("the foreign member is refused", || {
            is_refused(&etcd, &foreign)
        })
        .await;
        etcd.put("k", "v").await.unwrap();
    }
    assert_eq!(key_count(&theirs).await, 0);
}

/// One of five endpoints is enough if the others are down.
#[tokio::test]
async fn reachable_endpoints_choose_the_cluster() {
    let cluster = Cluster::start(1).await;
    let mut endpoints = cluster.endpoints();
    endpoints.extend((1..5).map(|port| format!("http://127.0.0.1:{port}")));
    let etcd = Client::connect(endpoints).await.unwrap();
    etcd.put("k", "v").await.unwrap();
}

/// Connects a client that follows changes to the first cluster, then gives it the endpoints of both.
async fn connect_following(first: &Cluster, second: &Cluster) -> Client {
    let builder = Client::builder(first.endpoints()).follow_cluster_change();
    let etcd = builder.connect().await.unwrap();
    let both = [first.endpoints(), second.endpoints()].concat();
    etcd.set_endpoints(both).await.unwrap();
    let foreign = second.endpoints().remove(0);
    until("the second cluster is refused", || {
        is_refused(&etcd, &foreign)
    })
    .await;
    etcd
}

async fn put_keys(etcd: &Client, prefix: &str) {
    for n in 0..20 {
        let put = etcd.put(format!("{prefix}/{n}"), "v");
        put.timeout(Duration::from_secs(20)).await.unwrap();
    }
}

/// Waits until a client serves reads from this cluster.
async fn wait_until_followed(etcd: &Client, cluster: u64) {
    until_async("the other cluster is followed", async || {
        let read = etcd.get("a").timeout(Duration::from_secs(1)).await;
        read.is_ok_and(|read| read.header.cluster_id == cluster)
    })
    .await;
    assert_eq!(etcd.cluster_id(), Some(cluster));
}

#[tokio::test]
async fn followed_clusters_are_never_mixed() {
    let (first, second) = start_two_clusters().await;
    let ids = [cluster_id(&first).await, cluster_id(&second).await];
    let etcd = connect_following(&first, &second).await;
    put_keys(&etcd, "a").await;
    assert_eq!((key_count(&first).await, key_count(&second).await), (20, 0));

    first.member(0).kill();
    wait_until_followed(&etcd, ids[1]).await;
    first.member(0).start().await;
    until("the first cluster is refused", || {
        is_refused(&etcd, &first.endpoints()[0])
    })
    .await;
    put_keys(&etcd, "b").await;
    assert_eq!(etcd.cluster_id(), Some(ids[1]));
    assert_eq!(
        (key_count(&first).await, key_count(&second).await),
        (20, 20)
    );

    second.member(0).kill();
    wait_until_followed(&etcd, ids[0]).await;
    put_keys(&etcd, "c").await;
    assert_eq!(key_count(&first).await, 40);
}

/// One reset connection does not mean that the cluster is gone.
#[tokio::test]
async fn reconnecting_cluster_is_not_left() {
    let (first, second) = start_two_clusters().await;
    let first_id = cluster_id(&first).await;
    let etcd = connect_following(&first, &second).await;
    for _ in 0..5 {
        first.member(0).client_link().set(Fault::Reset);
        first.member(0).client_link().heal();
        etcd.put("k", "v").await.ok();
    }
    until_async("puts succeed", async || etcd.put("k", "v").await.is_ok()).await;
    assert_eq!(etcd.cluster_id(), Some(first_id));
    assert_eq!(key_count(&second).await, 0);
}

#[tokio::test]
async fn cluster_change_ends_watch_and_lease() {
    let (first, second) = start_two_clusters().await;
    let ids = [cluster_id(&first).await, cluster_id(&second).await];
    let etcd = connect_following(&first, &second).await;
    // The other cluster has leases with the same ids, which another client owns.
    let other = Client::connect(second.endpoints()).await.unwrap();
    let theirs = other.lease(Duration::from_secs(60)).id(4711).await.unwrap();
    let ours = etcd.lease(Duration::from_secs(6)).id(4711);
    let lease = ours.keep_alive().revoke_on_drop().await.unwrap();
    let unkept = etcd.lease(Duration::from_secs(60)).id(4712).await.unwrap();
    let also_theirs = other.lease(Duration::from_secs(60)).id(4712).await.unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    first.member(0).kill();
    let end = loop {
        match timeout(TEST_TIMEOUT, watch.next()).await.unwrap() {
            Some(WatchEvent::Ended(end)) => break end,
            Some(_) => {}
            None => panic!("the watch ended without a reason"),
        }
    };
    let [previous, current] = ids;
    assert!(
        matches!(end, WatchEnd::ClusterChanged { previous: p, current: c } if (p, c) == (previous, current)),
        "{end:?}"
    );
    let lost = timeout(TEST_TIMEOUT, lease.lost()).await.unwrap();
    assert_eq!(lost, LeaseLost::ClusterChanged);
    let error = unkept.revoke().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClusterChanged);
    drop(lease);
    etcd.shutdown().await;
    for lease in [theirs, also_theirs] {
        assert!(lease.time_to_live().await.unwrap().remaining.is_some());
    }
}

fn put_reply_of(cluster_id: u64) -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(proto::ResponseHeader {
            cluster_id,
            ..Default::default()
        }),
        ..Default::default()
    })
}

#[tokio::test]
async fn response_of_left_cluster_is_refused() {
    let (old, new) = (ScriptedServer::start().await, ScriptedServer::start().await);
    old.on(PUT, |_| put_reply_of(1).after(Duration::from_secs(2)));
    new.on(STATUS, |_| Reply::message(&StatusResponse::of_cluster(2)));
    new.on(PUT, |_| put_reply_of(2));
    let builder = Client::builder([old.endpoint()]).follow_cluster_change();
    let etcd = builder.connect().await.unwrap();
    let slow = tokio::spawn(etcd.put("k", "v").into_future());
    until("the slow request has arrived", || old.count(PUT) == 1).await;
    etcd.set_endpoints([new.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(etcd.cluster_id(), Some(2));
    let error = slow.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClusterChanged, "{error}");
    assert_eq!(error.outcome(), Outcome::Unknown);
}
