//! Leases of a client that is shut down.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    lease::LeaseLost,
    proto::{LeaseRevokeRequest, LeaseRevokeResponse},
};
use prost::Message;
use testbed::{Cluster, Reply};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use crate::support::{
    lease_server::{GRANT, Lessor, REVOKE, granted, held},
    wait::until,
};

const TTL: Duration = Duration::from_secs(60);
/// Longer than anything here takes on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

/// A client that is being shut down: it waits for a lease to be revoked until that is let go.
async fn ending(lessor: &Lessor, etcd: &Client) -> (JoinHandle<()>, Arc<Notify>) {
    let grant = etcd.lease(TTL).keep_alive().revoke_on_drop();
    let doomed = grant.await.unwrap();
    let (id, go) = (doomed.id(), Arc::new(Notify::new()));
    let held_up = go.clone();
    lessor.server.on(REVOKE, move |call| {
        let answer = LeaseRevokeResponse::default();
        if LeaseRevokeRequest::decode(call.body).unwrap().id == id {
            held(answer, &held_up)
        } else {
            Reply::message(&answer)
        }
    });
    let client = etcd.clone();
    let ending = tokio::spawn(async move {
        client.shutdown().await;
        drop(doomed);
    });
    until("it is being shut down", || lessor.server.count(REVOKE) == 1).await;
    (ending, go)
}

async fn cluster_and_clients() -> (Cluster, Client, Client) {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd, other)
}

async fn server_and_client() -> (Lessor, Client) {
    let lessor = Lessor::start().await;
    let etcd = Client::connect([lessor.server.endpoint()]).await.unwrap();
    (lessor, etcd)
}

#[tokio::test]
async fn shutdown_revokes_what_was_asked_to_be_and_tells_all() {
    let (_cluster, etcd, other) = cluster_and_clients().await;
    let mut doomed = Vec::new();
    for _ in 0..100 {
        doomed.push(etcd.lease(TTL).keep_alive().revoke_on_drop().await.unwrap());
    }
    let spared = etcd.lease(TTL).keep_alive().await.unwrap();
    etcd.shutdown().await;
    assert_eq!(other.leases().await.unwrap().leases, [spared.id()]);
    assert_eq!(spared.lost().await, LeaseLost::Shutdown);
    assert_eq!(doomed[99].lost().await, LeaseLost::Shutdown);
}

#[tokio::test]
async fn shutdown_revokes_what_is_not_kept_but_was_asked_to_be_revoked() {
    let (_cluster, etcd, other) = cluster_and_clients().await;
    let _asked_for_at_first = etcd.lease(TTL).revoke_on_drop().await.unwrap();
    let later = etcd.lease(TTL).await.unwrap();
    let _asked_for_later = later.revoke_on_drop();
    let detached = etcd.lease(TTL).revoke_on_drop().await.unwrap();
    let detached = detached.detach();
    etcd.shutdown().await;
    assert_eq!(other.leases().await.unwrap().leases, [detached]);
}

#[tokio::test]
async fn shutdown_is_bounded_when_nobody_answers() {
    let (cluster, etcd, _) = cluster_and_clients().await;
    let _lease = etcd.lease(TTL).keep_alive().revoke_on_drop().await.unwrap();
    cluster.member(0).freeze();
    let start = Instant::now();
    etcd.shutdown().await;
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn no_lease_is_granted_by_a_client_that_is_being_shut_down() {
    let (lessor, etcd) = server_and_client().await;
    let (ending, go) = ending(&lessor, &etcd).await;
    let granted = lessor.server.count(GRANT);
    let error = etcd.lease(TTL).keep_alive().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(lessor.server.count(GRANT), granted);
    go.notify_one();
    timeout(AT_MOST, ending).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_lease_granted_while_the_client_is_shut_down_is_taken_back() {
    let (lessor, etcd) = server_and_client().await;
    let arrives = Arc::new(Notify::new());
    let held_up = arrives.clone();
    lessor.server.on(GRANT, move |call| {
        let answer = granted(&call);
        if answer.id == 4711 {
            held(answer, &held_up)
        } else {
            Reply::message(&answer)
        }
    });
    let grant = etcd.lease(TTL).id(4711).keep_alive().timeout(AT_MOST);
    let grant = tokio::spawn(grant.into_future());
    until("it is asked for", || lessor.server.count(GRANT) == 1).await;
    let (ending, go) = ending(&lessor, &etcd).await;
    arrives.notify_one();
    let error = grant.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(error.outcome(), Outcome::Rejected, "{error:?}");
    assert!(lessor.revoked().contains(&4711));
    go.notify_one();
    timeout(AT_MOST, ending).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_lease_to_be_kept_by_a_client_that_was_shut_down_is_lost() {
    let (_lessor, etcd) = server_and_client().await;
    let mut lease = etcd.lease(TTL).await.unwrap();
    etcd.shutdown().await;
    lease.keep_alive();
    let lost = timeout(AT_MOST, lease.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::Shutdown));
}

#[tokio::test]
async fn a_second_shutdown_does_not_disturb_the_first() {
    let (lessor, etcd) = server_and_client().await;
    lessor.server.on(REVOKE, |_| {
        Reply::message(&LeaseRevokeResponse::default()).after(Duration::from_millis(50))
    });
    let mut doomed = Vec::new();
    // More than are revoked at once.
    for _ in 0..200 {
        let grant = etcd.lease(TTL).keep_alive().revoke_on_drop();
        doomed.push(grant.await.unwrap());
    }
    let again = etcd.clone();
    tokio::join!(etcd.shutdown(), again.shutdown());
    assert_eq!(lessor.server.count(REVOKE), 200);
}
