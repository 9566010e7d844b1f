//! Leases of a client that is shut down.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    lease::LostReason,
    proto::{LeaseRevokeRequest, LeaseRevokeResponse},
};
use prost::Message;
use testbed::{Cluster, Reply};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use crate::support::{
    lease_server::{GRANT, LeaseServer, REVOKE, grant_response, respond_when_notified},
    wait::until,
};

const TTL: Duration = Duration::from_secs(60);
/// Longer than anything here takes on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

/// A client that is being shut down: it waits for a lease to be revoked until that is let go.
async fn ending(lease_server: &LeaseServer, etcd: &Client) -> (JoinHandle<()>, Arc<Notify>) {
    let grant = etcd.lease(TTL).keep_alive().revoke_on_drop();
    let doomed = grant.await.unwrap();
    let (id, go) = (doomed.id(), Arc::new(Notify::new()));
    let held_up = go.clone();
    lease_server.server.on(REVOKE, move |call| {
        let answer = LeaseRevokeResponse::default();
        if LeaseRevokeRequest::decode(call.body).unwrap().id == id {
            respond_when_notified(answer, &held_up)
        } else {
            Reply::message(&answer)
        }
    });
    let client = etcd.clone();
    let ending = tokio::spawn(async move {
        client.shutdown().await;
        drop(doomed);
    });
    until("it is being shut down", || {
        lease_server.server.count(REVOKE) == 1
    })
    .await;
    (ending, go)
}

async fn cluster_and_clients() -> (Cluster, Client, Client) {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd, other)
}

#[tokio::test]
async fn shutdown_revokes_leases_marked_revoke_on_drop() {
    let (_cluster, etcd, other) = cluster_and_clients().await;
    let mut doomed = Vec::new();
    for _ in 0..100 {
        doomed.push(etcd.lease(TTL).keep_alive().revoke_on_drop().await.unwrap());
    }
    let spared = etcd.lease(TTL).keep_alive().await.unwrap();
    etcd.shutdown().await;
    assert_eq!(other.leases().await.unwrap().leases, [spared.id()]);
    assert_eq!(spared.lost().await, LostReason::Shutdown);
    assert_eq!(doomed[99].lost().await, LostReason::Shutdown);
}

#[tokio::test]
async fn shutdown_revokes_unkept_leases_marked_revoke_on_drop() {
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
async fn shutdown_is_bounded_without_responses() {
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
async fn closing_client_grants_no_lease() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let (ending, go) = ending(&lease_server, &etcd).await;
    let granted = lease_server.server.count(GRANT);
    let error = etcd.lease(TTL).keep_alive().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(lease_server.server.count(GRANT), granted);
    go.notify_one();
    timeout(AT_MOST, ending).await.unwrap().unwrap();
}

#[tokio::test]
async fn lease_granted_during_shutdown_is_revoked() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let arrives = Arc::new(Notify::new());
    let held_up = arrives.clone();
    lease_server.server.on(GRANT, move |call| {
        let answer = grant_response(&call);
        if answer.id == 4711 {
            respond_when_notified(answer, &held_up)
        } else {
            Reply::message(&answer)
        }
    });
    let grant = etcd.lease(TTL).id(4711).keep_alive().timeout(AT_MOST);
    let grant = tokio::spawn(grant.into_future());
    until("it is asked for", || lease_server.server.count(GRANT) == 1).await;
    let (ending, go) = ending(&lease_server, &etcd).await;
    arrives.notify_one();
    let error = grant.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(error.outcome(), Outcome::Rejected, "{error:?}");
    assert!(lease_server.revoked().contains(&4711));
    go.notify_one();
    timeout(AT_MOST, ending).await.unwrap().unwrap();
}

#[tokio::test]
async fn keep_alive_after_shutdown_loses_lease() {
    let (_lessor, etcd) = LeaseServer::start_with_client().await;
    let mut lease = etcd.lease(TTL).await.unwrap();
    etcd.shutdown().await;
    lease.keep_alive();
    let lost = timeout(AT_MOST, lease.lost()).await;
    assert_eq!(lost, Ok(LostReason::Shutdown));
}

#[tokio::test]
async fn second_shutdown_does_not_interrupt_first() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    lease_server.server.on(REVOKE, |_| {
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
    assert_eq!(lease_server.server.count(REVOKE), 200);
}
