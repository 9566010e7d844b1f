//! Endpoints that change under a client.

use std::time::Duration;

use actix_etcd::{Client, ConnectivityState, ErrorKind};
use testbed::{Cluster, Reply, ScriptedServer};
use tokio_stream::StreamExt;

async fn until(what: &str, condition: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(
            tokio::time::Instant::now() < limit,
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn removed_endpoints_drain_and_new_ones_are_used() {
    let old = ScriptedServer::start().await;
    old.on("/etcdserverpb.KV/Put", |_| {
        Reply::message(&actix_etcd::proto::PutResponse {
            header: Some(actix_etcd::proto::ResponseHeader::default()),
            ..Default::default()
        })
        .after(Duration::from_millis(300))
    });
    let new = ScriptedServer::start().await;
    let etcd = Client::connect([old.endpoint()]).await.unwrap();
    let slow = tokio::spawn(etcd.put("k", "v").into_future());
    until("the slow request is there", || {
        old.count("/etcdserverpb.KV/Put") == 1
    })
    .await;
    etcd.set_endpoints([new.endpoint()]).await.unwrap();
    assert_eq!(etcd.endpoints(), [new.endpoint()]);
    slow.await.unwrap().expect("what is in flight finishes");
    until("the old connection is closed", || old.connections() == 0).await;
    etcd.wait_ready(Duration::from_secs(5)).await.unwrap();
    assert_eq!(new.connections(), 1);

    assert_eq!(
        etcd.set_endpoints(Vec::<String>::new())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NoEndpoints
    );
    assert_eq!(
        etcd.set_endpoints(["nonsense://"])
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidEndpoint
    );
    assert_eq!(
        etcd.endpoints(),
        [new.endpoint()],
        "a bad list changes nothing"
    );
}

#[tokio::test]
async fn changes_of_connectivity_are_told() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut changes = etcd.connectivity_changes().await.unwrap();
    cluster.member(0).kill();
    let failed = loop {
        let change = changes.next().await.unwrap();
        if change.state == ConnectivityState::TransientFailure {
            break change;
        }
    };
    assert_eq!(failed.endpoint, cluster.endpoints()[0]);
    assert!(failed.error.is_some());
    cluster.member(0).start().await;
    while changes.next().await.unwrap().state != ConnectivityState::Ready {}
    let status = etcd.connectivity().remove(0);
    assert_eq!(
        (status.state, status.is_leader, status.last_error.is_none()),
        (ConnectivityState::Ready, Some(true), true)
    );
    assert_eq!(status.member_id, Some(cluster.member(0).id()));
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused_with_the_reason() {
    let (ours, theirs) = (Cluster::start(1).await, Cluster::start(1).await);
    let etcd = Client::connect(ours.endpoints()).await.unwrap();
    etcd.put("k", "ours").await.unwrap();
    let both = [ours.endpoints(), theirs.endpoints()].concat();
    etcd.set_endpoints(both).await.unwrap();
    until("the stranger is refused", || {
        etcd.connectivity()[1]
            .last_error
            .as_ref()
            .is_some_and(|error| error.kind() == ErrorKind::ClusterChanged)
    })
    .await;
    for _ in 0..20 {
        assert_eq!(etcd.get("k").await.unwrap().first().unwrap().value, "ours");
    }
}
