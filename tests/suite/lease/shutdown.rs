//! Leases of a client that shuts down.

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
    lease_server::{GRANT, LeaseServer, REVOKE, grant_response, respond_when_notified},
    wait::{TEST_TIMEOUT, until},
};

const TTL: Duration = Duration::from_secs(60);

/// Starts a shutdown that waits for the response to a revocation. The server sends it once the returned [`Notify`] is
/// notified.
async fn start_blocked_shutdown(
    lease_server: &LeaseServer,
    etcd: &Client,
) -> (JoinHandle<()>, Arc<Notify>) {
    let grant = etcd.lease(TTL).keep_alive().revoke_on_drop();
    let lease = grant.await.unwrap();
    let (id, unblock) = (lease.id(), Arc::new(Notify::new()));
    let release = unblock.clone();
    lease_server.server.on(REVOKE, move |call| {
        let response = LeaseRevokeResponse::default();
        if LeaseRevokeRequest::decode(call.body).unwrap().id == id {
            respond_when_notified(response, &release)
        } else {
            Reply::message(&response)
        }
    });
    let client = etcd.clone();
    let shutdown = tokio::spawn(async move {
        client.shutdown().await;
        drop(lease);
    });
    until("the shutdown revokes the lease", || {
        lease_server.server.count(REVOKE) == 1
    })
    .await;
    (shutdown, unblock)
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
    let mut revoked = Vec::new();
    for _ in 0..100 {
        revoked.push(etcd.lease(TTL).keep_alive().revoke_on_drop().await.unwrap());
    }
    let unmarked = etcd.lease(TTL).keep_alive().await.unwrap();
    etcd.shutdown().await;
    assert_eq!(other.leases().await.unwrap().leases, [unmarked.id()]);
    assert_eq!(unmarked.lost().await, LeaseLost::Shutdown);
    assert_eq!(revoked[99].lost().await, LeaseLost::Shutdown);
}

#[tokio::test]
async fn shutdown_revokes_unkept_leases_marked_revoke_on_drop() {
    let (_cluster, etcd, other) = cluster_and_clients().await;
    let _marked_at_grant = etcd.lease(TTL).revoke_on_drop().await.unwrap();
    let later = etcd.lease(TTL).await.unwrap();
    let _marked_later = later.revoke_on_drop();
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
    let (shutdown, unblock) = start_blocked_shutdown(&lease_server, &etcd).await;
    let grants = lease_server.server.count(GRANT);
    let error = etcd.lease(TTL).keep_alive().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(lease_server.server.count(GRANT), grants);
    unblock.notify_one();
    timeout(TEST_TIMEOUT, shutdown).await.unwrap().unwrap();
}

#[tokio::test]
async fn lease_granted_during_shutdown_is_revoked() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let respond = Arc::new(Notify::new());
    let release = respond.clone();
    lease_server.server.on(GRANT, move |call| {
        let response = grant_response(&call);
        if response.id == 4711 {
            respond_when_notified(response, &release)
        } else {
            Reply::message(&response)
        }
    });
    let grant = etcd.lease(TTL).id(4711).keep_alive().timeout(TEST_TIMEOUT);
    let grant = tokio::spawn(grant.into_future());
    until("the server has received the grant", || {
        lease_server.server.count(GRANT) == 1
    })
    .await;
    let (shutdown, unblock) = start_blocked_shutdown(&lease_server, &etcd).await;
    respond.notify_one();
    let error = grant.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    assert_eq!(error.outcome(), Outcome::Rejected, "{error:?}");
    assert!(lease_server.revoked().contains(&4711));
    unblock.notify_one();
    timeout(TEST_TIMEOUT, shutdown).await.unwrap().unwrap();
}

#[tokio::test]
async fn keep_alive_after_shutdown_loses_lease() {
    let (_lease_server, etcd) = LeaseServer::start_with_client().await;
    let mut lease = etcd.lease(TTL).await.unwrap();
    etcd.shutdown().await;
    lease.keep_alive();
    let lost = timeout(TEST_TIMEOUT, lease.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::Shutdown));
}

#[tokio::test]
async fn second_shutdown_does_not_interrupt_first() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    lease_server.server.on(REVOKE, |_| {
        Reply::message(&LeaseRevokeResponse::default()).after(Duration::from_millis(50))
    });
    let mut revoked = Vec::new();
    // More than the client revokes at the same time.
    for _ in 0..200 {
        let grant = etcd.lease(TTL).keep_alive().revoke_on_drop();
        revoked.push(grant.await.unwrap());
    }
    let second_handle = etcd.clone();
    tokio::join!(etcd.shutdown(), second_handle.shutdown());
    assert_eq!(lease_server.server.count(REVOKE), 200);
}
