//! One endpoint, a TCP balancer: the member behind it changes with every connection.

use std::time::{Duration, Instant};

use actix_etcd::Client;
use testbed::{Cluster, Fault, TcpBalancer};

use crate::support::{
    lease_recorder::LeaseRecorder,
    traffic::{Readers, Writers, check_applied_at_most_once, error_counts, longest_gap},
    wait::{hold, until},
    watched_revisions::WatchedRevisions,
};

const SECOND: Duration = Duration::from_secs(1);
const PREFIX: &str = "w/";
/// The endpoint serves again within 2 s; the rest is slack for a busy machine.
const MAX_GAP: Duration = Duration::from_millis(3500);

/// Connects through the balancer to member 0, which is not the leader.
async fn start() -> (Cluster, TcpBalancer, Client) {
    let cluster = Cluster::start(3).await;
    cluster.move_leader(1).await;
    let balancer = TcpBalancer::over(&cluster);
    let etcd = Client::connect([balancer.endpoint()]).await.unwrap();
    assert_eq!(balancer.forwarded(0), balancer.link().accepted());
    (cluster, balancer, etcd)
}

/// Applies the fault to the member behind the only connection, with load, a watch and a lease, and checks them all.
async fn check_fault(begin: impl Fn(&Cluster), end: impl AsyncFn(&Cluster)) {
    let (cluster, balancer, etcd) = start().await;
    etcd.put("read", "me").await.unwrap();
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let lease = etcd.lease(5 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    let writers = Writers::start(&etcd, 4, PREFIX);
    let readers = Readers::start(&etcd, 2, "read");
    writers.wait_for_writes(20).await;
    begin(&cluster);
    hold(6 * SECOND).await;
    end(&cluster).await;
    writers.wait_for_writes(20).await;
    let writes = writers.finish().await;
    println!(
        "longest gap {:?}, {:?}, {} connections",
        longest_gap(&writes),
        error_counts(&writes),
        balancer.link().accepted()
    );
    let failed_reads = readers.finish().await;
    assert!(failed_reads.is_empty(), "{failed_reads:?}");
    assert!(longest_gap(&writes) < MAX_GAP);
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    watched.check(&cluster).await;
    recorder.check_alive().await;
}

#[tokio::test]
async fn cut_off_member_behind_balancer_is_left() {
    check_fault(|cluster| cluster.isolate(0), async |cluster| cluster.heal()).await;
}

#[tokio::test]
async fn frozen_member_behind_balancer_is_left() {
    check_fault(
        |cluster| cluster.member(0).freeze(),
        async |cluster| cluster.heal(),
    )
    .await;
}

#[tokio::test]
async fn frozen_link_behind_balancer_is_left() {
    check_fault(
        |cluster| cluster.member(0).client_link().set(Fault::Freeze),
        async |cluster| cluster.heal(),
    )
    .await;
}

#[tokio::test]
async fn killed_member_behind_balancer_is_left() {
    check_fault(
        |cluster| cluster.member(0).kill(),
        async |cluster| cluster.start_all().await,
    )
    .await;
}

#[tokio::test]
async fn client_connects_although_first_backend_is_learner() {
    let cluster = Cluster::start(1).await;
    let learner = cluster.add_learner().await;
    let balancer = TcpBalancer::over(&cluster);
    balancer.script(&[learner]);
    let started = Instant::now();
    let etcd = Client::connect([balancer.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(balancer.forwarded(learner), 1);
    assert!(started.elapsed() < MAX_GAP);
}

#[tokio::test]
async fn reset_connections_of_balancer_cost_no_read() {
    let (cluster, balancer, etcd) = start().await;
    etcd.put("read", "me").await.unwrap();
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let writers = Writers::start(&etcd, 4, PREFIX);
    let readers = Readers::start(&etcd, 2, "read");
    for _ in 0..5 {
        writers.wait_for_writes(20).await;
        balancer.link().reset_now();
    }
    writers.wait_for_writes(20).await;
    let writes = writers.finish().await;
    let failed_reads = readers.finish().await;
    assert!(failed_reads.is_empty(), "{failed_reads:?}");
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    watched.check(&cluster).await;
    until("one connection is left", || {
        balancer.link().connections() == 1
    })
    .await;
}
