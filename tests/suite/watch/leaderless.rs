//! Watches that do not require a leader.

use std::time::Duration;

use actix_etcd::{
    Client,
    balancer::{ConnectivityState, EndpointStatus},
};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    connected_cluster::connect_with,
    wait::until_async,
    watch_items::{WATCH_TIMEOUT, next_change},
    watch_server::{WATCH, connect, created, next_create, start_watch_server},
};

#[tokio::test]
async fn watches_requiring_leader_use_separate_stream() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        loop {
            let id = next_create(&mut rx).await.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watches = Vec::new();
    for require_leader in [true, false, true, false] {
        watches.push(
            etcd.watch("a")
                .require_leader(require_leader)
                .await
                .unwrap(),
        );
    }
    let streams = server.calls(WATCH);
    let requires_leader: Vec<bool> = streams
        .iter()
        .map(|call| call.metadata.contains_key("hasleader"))
        .collect();
    assert_eq!(requires_leader, [true, false]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn leader_requirement_delays_only_its_own_watch() {
    let cluster = Cluster::start(3).await;
    let survivor = cluster.member(0);
    let builder = Client::builder([cluster.endpoints()[0].clone()]);
    let etcd = connect_with(builder.request_timeout(WATCH_TIMEOUT)).await;
    let written = etcd.put("k", "v").await.unwrap().header.revision;
    survivor.client_link().set(Fault::Refuse);
    for member in [1, 2] {
        cluster.member(member).kill();
    }
    let leaderless = async || {
        let has_leader = survivor.metric("etcd_server_has_leader").await;
        let is_ready = |member: &EndpointStatus| member.state == ConnectivityState::Ready;
        has_leader == Some(0.0) && !etcd.connectivity().iter().any(is_ready)
    };
    until_async("the member is leaderless and disconnected", leaderless).await;
    let open = |require_leader| {
        let open = etcd.watch("k").start_revision(written);
        tokio::spawn(open.require_leader(require_leader).into_future())
    };
    // The watch that requires a leader is first in the queue.
    let mut leader_required = open(true);
    let wait = Duration::from_millis(300);
    assert!(timeout(wait, &mut leader_required).await.is_err());
    let mut leader_optional = open(false);
    assert!(timeout(wait, &mut leader_optional).await.is_err());
    survivor.client_link().heal();
    let mut leader_optional = leader_optional.await.unwrap().unwrap();
    assert_eq!(next_change(&mut leader_optional).await.0, written);
    assert!(
        !leader_required.is_finished(),
        "the watch opened without a leader"
    );
    leader_required.abort();
    etcd.shutdown().await;
}
