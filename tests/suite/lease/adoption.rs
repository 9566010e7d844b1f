//! Leases that are taken over by their id.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind,
    lease::{LeaseEvent, LeaseLost},
};
use serde_json::json;
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    connected_cluster::StartWithClient,
    lease_recorder::LeaseRecorder,
    wait::{TEST_TIMEOUT, hold, until_async},
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn detached_lease_is_kept_alive_by_next_process() {
    let (cluster, before) = Cluster::start_with_client(1).await;
    let lease = before.lease(3 * SECOND).keep_alive().await.unwrap();
    before.put("k", "v").lease(&lease).await.unwrap();
    let id = lease.detach();
    before.shutdown().await;
    let after = Client::connect(cluster.endpoints()).await.unwrap();
    let adopted = after.lease_from(id).await.unwrap();
    assert_eq!((adopted.id(), adopted.ttl()), (id, 3 * SECOND));
    assert!(adopted.remaining() > SECOND);
    let recorder = LeaseRecorder::start(&adopted, Some(&cluster));
    hold(6 * SECOND).await;
    recorder.check_alive().await;
    assert_eq!(adopted.keys().await.unwrap(), ["k"]);
    adopted.revoke().await.unwrap();
    assert_eq!(after.get("k").await.unwrap().count, 0);
}

#[tokio::test]
async fn lease_that_does_not_exist_cannot_be_adopted() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let error = etcd.lease_from(4711).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseNotFound);
    let error = etcd.lease_from(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn adopted_lease_is_revoked_on_drop_if_requested() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let id = etcd.lease(60 * SECOND).await.unwrap().detach();
    drop(etcd.lease_from(id).await.unwrap());
    assert!(etcd.time_to_live(id).await.unwrap().remaining.is_some());
    drop(etcd.lease_from(id).revoke_on_drop().await.unwrap());
    until_async("the lease is revoked", async || {
        etcd.time_to_live(id).await.unwrap().remaining.is_none()
    })
    .await;
}

#[tokio::test]
async fn adoption_ends_earlier_handle_of_same_client() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let grant = etcd.lease(60 * SECOND).keep_alive().revoke_on_drop();
    let earlier = grant.await.unwrap();
    let mut events = earlier.events();
    let adopted = etcd.lease_from(&earlier).await.unwrap();
    let lost = loop {
        match timeout(TEST_TIMEOUT, events.next()).await.unwrap() {
            Some(LeaseEvent::Lost(reason)) => break reason,
            Some(_) => {}
            None => panic!("the end was not reported"),
        }
    };
    assert_eq!(lost, LeaseLost::TakenOver);
    assert_eq!(earlier.remaining(), Duration::ZERO);
    // Does not revoke the lease, which the other handle keeps.
    drop(earlier);
    etcd.keep_alive_once(&adopted).await.unwrap();
    assert!(adopted.remaining() > 50 * SECOND);
}

#[tokio::test]
async fn lease_with_negative_id_is_kept_alive() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let id: i64 = -4711;
    let grant = json!({"ID": id.to_string(), "TTL": "3"});
    cluster.api_any("/v3/lease/grant", grant).await;
    let renewed = etcd.keep_alive_once(id).await.unwrap();
    assert_eq!((renewed.lease, renewed.ttl), (id, 3 * SECOND));
    let lease = etcd.lease_from(id).await.unwrap();
    etcd.put("k", "v").lease(&lease).await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    hold(6 * SECOND).await;
    recorder.check_alive().await;
    assert_eq!(lease.keys().await.unwrap(), ["k"]);
    assert_eq!(etcd.leases().await.unwrap().leases, [id]);
    lease.revoke().await.unwrap();
    let granted = etcd.lease(10 * SECOND).id(id).await.unwrap();
    assert_eq!(granted.id(), id);
}
