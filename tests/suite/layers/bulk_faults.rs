//! Bulk writes while members fail and responses are lost.

use std::time::Duration;

use actix_etcd::{
    Outcome,
    layers::bulk::{BulkFailed, BulkReport, OnUnknown},
};
use testbed::{Cluster, Direction, Fault};

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    quiet_window::ready_members,
    wait::{TEST_TIMEOUT, until, until_async},
};

async fn check_killed_member(on_unknown: OnUnknown) {
    const KEYS: u64 = 6_000;
    let (cluster, etcd) = Cluster::start_with_client(3).await;
    until("all members are ready", || ready_members(&etcd) == 3).await;
    let mut bulk = etcd.bulk().max_ops(16).on_unknown(on_unknown).start();
    for n in 0..KEYS {
        bulk.put(format!("k/{n:05}"), n.to_string()).await.unwrap();
        // The leader, with transactions in flight.
        if n == KEYS / 3 {
            cluster.member(cluster.leader().await).kill();
        }
    }
    let report = bulk.finish().await.unwrap();
    assert_eq!((report.written, report.resume_point), (KEYS, KEYS));
    let found = etcd.get("k/").prefix().await.unwrap();
    assert_eq!(found.kvs.len() as u64, KEYS);
    for (n, kv) in found.kvs.iter().enumerate() {
        assert_eq!(kv.value, n.to_string());
    }
}

#[tokio::test]
async fn killed_leader_costs_no_write() {
    check_killed_member(OnUnknown::Repeat).await;
}

#[tokio::test]
async fn killed_leader_costs_no_write_with_read_back() {
    check_killed_member(OnUnknown::ReadBack).await;
}

/// Writes two keys whose response is lost. Returns the report, and how often the keys were written.
async fn lose_response(on_unknown: OnUnknown) -> (Result<BulkReport, BulkFailed>, Vec<i64>) {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let link = cluster.member(0).client_link().clone();
    // Only the fault ends an attempt, not a slow disk.
    let mut bulk = etcd
        .bulk()
        .on_unknown(on_unknown)
        .timeout(TEST_TIMEOUT)
        .start();
    bulk.put("k/0", "v").await.unwrap();
    bulk.flush().await.unwrap();
    let before = cluster.revision().await;
    link.set(Fault::HalfOpen(Direction::ToClient));
    bulk.put("k/1", "v").await.unwrap();
    bulk.put("k/2", "v").await.unwrap();
    let finishing = tokio::spawn(bulk.finish());
    let applied = async || cluster.revision().await > before;
    until_async("the transaction is applied", applied).await;
    // The link blocks the response until the client has lost its connection.
    let accepted = link.accepted();
    link.reset_now();
    until("the client connects again", || link.accepted() > accepted).await;
    link.heal();
    let result = finishing.await.unwrap();
    let found = etcd.get("k/").prefix().await.unwrap();
    (result, found.kvs.iter().map(|kv| kv.version).collect())
}

#[tokio::test]
async fn lost_response_is_repeated_by_default() {
    let (result, versions) = lose_response(OnUnknown::default()).await;
    assert_eq!(result.unwrap().written, 3);
    assert_eq!(versions, [1, 2, 2]);
}

#[tokio::test]
async fn lost_response_is_resolved_by_read_back() {
    let (result, versions) = lose_response(OnUnknown::ReadBack).await;
    assert_eq!(result.unwrap().resume_point, 3);
    assert_eq!(versions, [1, 1, 1]);
}

#[tokio::test]
async fn lost_response_is_reported_as_unknown() {
    let (result, versions) = lose_response(OnUnknown::Report).await;
    let failed = result.unwrap_err();
    let report = failed.report();
    assert_eq!((report.written, report.failed), (1, 2));
    assert_eq!(report.failures[0].positions, 1..3);
    assert_eq!(failed.reason().outcome(), Outcome::Unknown);
    assert_eq!(versions, [1, 1, 1]);
}

/// A frozen member holds a transaction that was repeated elsewhere, and processes it after a later write.
#[tokio::test]
async fn late_copy_does_not_restore_old_value() {
    let cluster = Cluster::start(3).await;
    let follower = (cluster.leader().await + 1) % 3;
    let frozen = cluster.member(follower);
    let only_frozen = connect([frozen.endpoint()]).await;
    let all = cluster.endpoints();
    for round in 0..5 {
        let key = format!("late/{round}");
        let mut bulk = only_frozen
            .bulk()
            .timeout(Duration::from_millis(300))
            .start();
        bulk.put(format!("known/{round}"), "v").await.unwrap();
        bulk.flush().await.unwrap();
        frozen.freeze();
        let before = frozen.client_link().bytes(Direction::ToServer);
        bulk.put(&key, "first").await.unwrap();
        let finishing = tokio::spawn(bulk.finish());
        // The first attempt times out at the frozen member, the next one goes to another.
        until("the request is in flight", || {
            frozen.client_link().bytes(Direction::ToServer) > before
        })
        .await;
        only_frozen.set_endpoints(all.clone()).await.unwrap();
        finishing.await.unwrap().unwrap();
        let mut bulk = only_frozen.bulk().start();
        bulk.put(&key, "second").await.unwrap();
        let report = bulk.finish().await.unwrap();
        frozen.thaw();
        only_frozen
            .set_endpoints([frozen.endpoint()])
            .await
            .unwrap();
        // A response of the thawed member at a later revision: it has processed what it held.
        let read = only_frozen.get(&key).await.unwrap();
        assert!(read.header.revision >= report.revision);
        assert_eq!(read.value().unwrap(), "second", "round {round}");
        cluster.wait_healthy().await;
    }
}
