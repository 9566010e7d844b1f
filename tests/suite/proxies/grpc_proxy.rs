//! Requests, leases, watches, authentication and recipes through etcd's gRPC proxy.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind,
    kv::{Compare, get, put},
};
use testbed::{Cluster, GrpcProxy};
use tokio::time::timeout;

use crate::support::{
    auth_cluster::start_with_auth,
    lease_recorder::LeaseRecorder,
    traffic::Writers,
    wait::{TEST_TIMEOUT, hold},
    watched_revisions::WatchedRevisions,
};

const SECOND: Duration = Duration::from_secs(1);

async fn start(members: usize) -> (Cluster, GrpcProxy, Client) {
    let cluster = Cluster::start(members).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    (cluster, proxy, etcd)
}

#[tokio::test]
async fn grpc_proxy_serves_key_value_requests() {
    let (_cluster, _proxy, etcd) = start(3).await;
    let first = etcd.put("k/1", "a").await.unwrap().header.revision;
    let second = etcd.put("k/1", "b").prev_kv().await.unwrap();
    assert_eq!(second.prev_kv.unwrap().value, "a");
    let found = etcd.get("k/1").await.unwrap();
    assert_eq!(found.first().unwrap().value, "b");
    let earlier = etcd.get("k/1").revision(first).await.unwrap();
    assert_eq!(earlier.first().unwrap().value, "a");
    let serializable = etcd.get("k/").prefix().serializable().await.unwrap();
    assert_eq!(serializable.count, 1);
    let txn = etcd
        .txn()
        .when([Compare::value("k/1").eq("b")])
        .then([put("k/2", "c")])
        .then([get("k/").prefix()])
        .await
        .unwrap();
    assert!(txn.succeeded);
    assert_eq!(etcd.delete("k/").prefix().await.unwrap().deleted, 2);
    etcd.compact(second.header.revision).await.unwrap();
    let compacted = etcd.get("k/1").revision(first).await.unwrap_err();
    assert_eq!(compacted.kind(), ErrorKind::Compacted);
}

#[tokio::test]
async fn grpc_proxy_keeps_lease_alive() {
    let (cluster, _proxy, etcd) = start(3).await;
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    etcd.put("k", "v").lease(&lease).await.unwrap();
    hold(5 * SECOND).await;
    recorder.check_alive().await;
    recorder.set_revoked();
    lease.revoke().await.unwrap();
    assert_eq!(etcd.get("k").await.unwrap().count, 0);
}

#[tokio::test]
async fn grpc_proxy_delivers_every_event_once() {
    let (cluster, _proxy, etcd) = start(3).await;
    let watched = WatchedRevisions::start(&etcd, "w/").await;
    let writers = Writers::start(&etcd, 4, "w/");
    writers.wait_for_writes(300).await;
    for write in writers.finish().await {
        write.result.unwrap();
    }
    watched.check(&cluster).await;
}

#[tokio::test]
async fn grpc_proxy_passes_logins_and_tokens() {
    let cluster = start_with_auth(Cluster::builder().members(3)).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let builder = Client::builder([proxy.endpoint()]);
    let refused = builder.clone().credentials("ann", "wrong").connect().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::AuthFailed);
    let etcd = builder.credentials("ann", "word").connect().await.unwrap();
    etcd.put("a/k", "v").await.unwrap();
    let denied = etcd.put("b/k", "v").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    assert_eq!(etcd.get("a/k").await.unwrap().count, 1);
}

#[tokio::test]
async fn member_list_of_grpc_proxy_is_accepted() {
    let (_cluster, proxy, etcd) = start(3).await;
    let listed = etcd.cluster().list().await.unwrap();
    // The proxy lists itself, by its own address, without a response header.
    assert_eq!(listed.members.len(), 1);
    let address = proxy.endpoint().replace("http://", "");
    assert_eq!(listed.members[0].client_urls, [address]);
}

#[tokio::test]
async fn sync_through_grpc_proxy_keeps_endpoint() {
    let (_cluster, proxy, etcd) = start(3).await;
    etcd.sync().await.unwrap();
    assert!(etcd.endpoints().contains(&proxy.endpoint()));
    for n in 0..20 {
        etcd.put("k", n.to_string()).await.unwrap();
    }
}

#[tokio::test]
async fn mutex_and_election_work_through_grpc_proxy() {
    let (_cluster, _proxy, etcd) = start(3).await;
    let first = etcd.session(10 * SECOND).await.unwrap();
    let second = etcd.session(10 * SECOND).await.unwrap();
    let guard = first.mutex("l").lock().await.unwrap();
    let held = second.mutex("l").try_lock().await;
    assert!(held.unwrap().is_none());
    guard.unlock().await.unwrap();
    let next = timeout(TEST_TIMEOUT, second.mutex("l").lock()).await;
    let next = next.unwrap().unwrap();
    next.unlock().await.unwrap();

    let leader = first.election("e").campaign("a").await.unwrap();
    let mut leaders = etcd.leaders("e");
    let seen = timeout(TEST_TIMEOUT, leaders.next()).await.unwrap();
    assert!(seen.is_some());
    leader.resign().await.unwrap();
}
