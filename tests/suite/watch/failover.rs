//! Watches that move away from a failed member.

use std::time::{Duration, Instant};

use actix_etcd::{Client, Watch, WatchEvent, watch::WatchEnd};
use testbed::{
    Cluster, Fault,
    validators::{self, Record, Request},
};

use crate::support::{
    connected_cluster::connect,
    watch_items::{WATCH_TIMEOUT, next_change, next_item, read_to_end},
    watch_recorder::{actual_history, record_progress, to_record},
    watcher_metrics::watched_member,
    write_load::put_until_ok,
};

/// Injects a fault into the member that has the watch. Returns the time from the next successful write until the watch
/// delivers it. The time of the write itself is not included: it may have to wait for an election.
async fn time_to_resume(fault: impl AsyncFnOnce(&Cluster, &Client, usize)) -> Duration {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k").await.unwrap();
    let member = watched_member(&cluster).await;
    fault(&cluster, &etcd, member).await;
    let start = Instant::now();
    // The write may be applied more than once: the watch also delivers attempts with an unknown outcome.
    let written = put_until_ok(&etcd, "k", "v").await;
    let succeeded = Instant::now();
    while next_change(&mut watch).await.0 < written {}
    let took = succeeded.elapsed();
    println!(
        "written after {:?}, delivered after {took:?}",
        succeeded - start
    );
    drop(watch);
    etcd.shutdown().await;
    took
}

#[tokio::test]
async fn watch_leaves_killed_member() {
    let took = time_to_resume(async |cluster, _, member| cluster.member(member).kill()).await;
    assert!(took < Duration::from_secs(5));
}

#[tokio::test]
async fn watch_leaves_frozen_member() {
    let took = time_to_resume(async |cluster, _, member| cluster.member(member).freeze()).await;
    assert!(took < Duration::from_secs(8));
}

#[tokio::test]
async fn watch_leaves_leaderless_member() {
    let took = time_to_resume(async |cluster, _, member| cluster.isolate(member)).await;
    assert!(took < Duration::from_secs(8));
}

#[tokio::test]
async fn watch_leaves_removed_member() {
    let took = time_to_resume(async |cluster, _, member| cluster.remove_member(member).await).await;
    assert!(took < Duration::from_secs(5));
}

#[tokio::test]
async fn watch_leaves_removed_endpoint() {
    let took = time_to_resume(async |cluster, etcd, member| {
        let mut endpoints = cluster.endpoints();
        endpoints.remove(member);
        etcd.set_endpoints(endpoints).await.unwrap();
    })
    .await;
    assert!(took < Duration::from_secs(5));
}

#[tokio::test]
async fn outage_over_maximum_ends_watch() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k").status_events();
    let mut unlimited = open.await.unwrap();
    let max_outage = Duration::from_millis(700);
    let mut limited = etcd.watch("k").max_outage(max_outage).await.unwrap();
    let start = Instant::now();
    cluster.member(0).client_link().set(Fault::Refuse);
    assert!(matches!(
        read_to_end(&mut limited).await,
        WatchEnd::OutageTooLong { last: Some(_) }
    ));
    assert!(start.elapsed() >= max_outage);
    cluster.heal();
    assert!(matches!(
        next_item(&mut unlimited).await,
        WatchEvent::Disconnected(_)
    ));
    assert!(matches!(
        next_item(&mut unlimited).await,
        WatchEvent::Resumed
    ));
    etcd.put("k", "v").timeout(WATCH_TIMEOUT).await.unwrap();
    next_change(&mut unlimited).await;
    etcd.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twice_interrupted_replay_loses_no_event() {
    const REVISIONS: usize = 4000;
    const LINK_DELAY: Duration = Duration::from_millis(150);
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut writers = Vec::new();
    for writer in 0..40 {
        let etcd = etcd.clone();
        writers.push(tokio::spawn(async move {
            for n in 0..REVISIONS / 40 {
                let value = format!("{writer}/{n}/{}", "v".repeat(4000));
                put_until_ok(&etcd, &format!("k/{writer}"), &value).await;
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let last = cluster.revision().await;
    // With this delay only one flow-control window is in flight: thousands of events are still to come when the first
    // ones are read.
    for member in cluster.members() {
        member.client_link().set(Fault::Delay(LINK_DELAY));
    }
    let open = etcd.watch("k/").prefix().start_revision(1).status_events();
    let mut watch: Watch = open.progress_notify().await.unwrap();
    let mut records = Vec::new();
    let mut interruptions = 0;
    while watch.revision() < last {
        let record = to_record(next_item(&mut watch).await);
        let is_first = matches!(record, Some(Record::Events { .. }))
            && matches!(records.last(), None | Some(Record::Resumed));
        if is_first && interruptions < 2 {
            interruptions += 1;
            for member in cluster.members() {
                member.client_link().reset_now();
            }
            if interruptions == 2 {
                cluster.heal();
            }
        }
        records.extend(record);
    }
    record_progress(&mut watch, last, &mut records).await;
    let is_disconnect = |record: &&Record| matches!(record, Record::Disconnected);
    assert!(records.iter().filter(is_disconnect).count() >= 2);
    let history = actual_history(&cluster).await;
    validators::all(&Request::prefix("k/", 1), &records, &history).unwrap();
    etcd.shutdown().await;
}
