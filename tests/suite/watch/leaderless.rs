//! Watches that do without a leader.

use std::time::Duration;

use actix_etcd::{Client, ConnectivityState, EndpointStatus};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    wait::until_async,
    watch_items::{TEST_TIMEOUT, next_change},
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
    for require in [true, false, true, false] {
        watches.push(etcd.watch("a").require_leader(require).await.unwrap());
    }
    let asked = server.calls(WATCH);
    let asked: Vec<bool> = asked
        .iter()
        .map(|call| call.metadata.contains_key("hasleader"))
        .collect();
    assert_eq!(asked, [true, false]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn leader_requirement_delays_only_its_own_watch() {
    let cluster = Cluster::start(3).await;
    let alone = cluster.member(0);
    let etcd = Client::builder([cluster.endpoints()[0].clone()])
        .request_timeout(TEST_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let written = etcd.put("k", "v").await.unwrap().header.revision;
    alone.client_link().set(Fault::Refuse);
    for member in [1, 2] {
        cluster.member(member).kill();
    }
    let leaderless = async || {
        let has_leader = alone.metric("etcd_server_has_leader").await;
        let is_ready = |member: &EndpointStatus| member.state == ConnectivityState::Ready;
        has_leader == Some(0.0) && !etcd.connectivity().iter().any(is_ready)
    };
    until_async("a member without leader that nobody reaches", leaderless).await;
    let open = |require| {
        let open = etcd.watch("k").start_revision(written);
        tokio::spawn(open.require_leader(require).into_future())
    };
    // The one that needs a leader waits first.
    let mut needs_one = open(true);
    let brief = Duration::from_millis(300);
    assert!(timeout(brief, &mut needs_one).await.is_err());
    let mut does_without = open(false);
    assert!(timeout(brief, &mut does_without).await.is_err());
    alone.client_link().heal();
    let mut does_without = does_without.await.unwrap().unwrap();
    assert_eq!(next_change(&mut does_without).await.0, written);
    assert!(!needs_one.is_finished(), "there is no leader");
    needs_one.abort();
    etcd.shutdown().await;
}
