//! Faults of gRPC proxies, and of members behind them.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind};
use testbed::{Cluster, GrpcProxy};

use crate::support::{
    lease_recorder::LeaseRecorder,
    traffic::{Readers, Writers, check_applied_at_most_once, error_counts, longest_gap},
    wait::hold,
    watched_revisions::WatchedRevisions,
};

const SECOND: Duration = Duration::from_secs(1);
const PREFIX: &str = "w/";
/// A frozen proxy is left within a second; the rest is slack for a busy machine.
const MAX_GAP: Duration = Duration::from_millis(3500);

#[tokio::test]
async fn restarted_grpc_proxy_costs_no_event_or_lease() {
    let cluster = Cluster::start(1).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let lease = etcd.lease(5 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    let writers = Writers::start(&etcd, 2, PREFIX);
    for _ in 0..3 {
        writers.wait_for_writes(20).await;
        proxy.restart().await;
    }
    writers.wait_for_writes(20).await;
    let writes = writers.finish().await;
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    watched.check(&cluster).await;
    recorder.check_alive().await;
}

#[tokio::test]
async fn frozen_grpc_proxy_is_left_for_another() {
    let cluster = Cluster::start(3).await;
    let proxies = [
        GrpcProxy::start(&cluster).await,
        GrpcProxy::start(&cluster).await,
    ];
    let endpoints = proxies.each_ref().map(GrpcProxy::endpoint);
    let etcd = Client::connect(endpoints).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    for proxy in &proxies {
        let writers = Writers::start(&etcd, 4, PREFIX);
        let readers = Readers::start(&etcd, 2, "read");
        writers.wait_for_writes(20).await;
        proxy.freeze();
        hold(6 * SECOND).await;
        proxy.thaw();
        writers.wait_for_writes(20).await;
        let failed_reads = readers.finish().await;
        assert!(failed_reads.is_empty(), "{failed_reads:?}");
        let writes = writers.finish().await;
        println!(
            "longest gap {:?}, {:?}",
            longest_gap(&writes),
            error_counts(&writes)
        );
        assert!(longest_gap(&writes) < MAX_GAP);
    }
}

#[tokio::test]
async fn killed_member_behind_grpc_proxy_repeats_no_write() {
    let cluster = Cluster::start(3).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    let writers = Writers::start(&etcd, 4, PREFIX);
    for member in cluster.members() {
        writers.wait_for_writes(20).await;
        member.kill();
        writers.wait_for_writes(20).await;
        member.start().await;
        cluster.wait_healthy().await;
    }
    let writes = writers.finish().await;
    println!("{:?}", error_counts(&writes));
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
}

#[tokio::test]
async fn outage_behind_grpc_proxy_ends_with_deadline() {
    let cluster = Cluster::start(1).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    cluster.member(0).kill();
    let failed = etcd.get("k").timeout(2 * SECOND).await.unwrap_err();
    assert!(
        matches!(
            failed.kind(),
            ErrorKind::DeadlineExceeded | ErrorKind::Unavailable
        ),
        "{failed:?}"
    );
    cluster.start_all().await;
    etcd.put("k", "v").timeout(10 * SECOND).await.unwrap();
}
