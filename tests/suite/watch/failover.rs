//! Watches whose member fails.

use std::time::{Duration, Instant};

use actix_etcd::{Client, Watch, WatchEnd, WatchItem};
use testbed::{
    Cluster, Fault,
    validators::{self, Record, Request},
};

use crate::support::{
    watch_items::{TEST_TIMEOUT, next_change, next_item, read_to_end},
    watch_recorder::{actual_history, record_progress, to_record},
    watcher_metrics::wait_for_watchers,
};

/// The member that has watchers.
async fn carrier(cluster: &Cluster) -> usize {
    wait_for_watchers(cluster, 1.0).await;
    for member in cluster.members() {
        let watchers = member.metric("etcd_debugging_mvcc_watcher_total").await;
        if watchers.unwrap_or_default() > 0.5 {
            return member.index();
        }
    }
    panic!("no member has the watch");
}

/// Writes, again if the outcome is unknown, and gives the revision.
async fn put(etcd: &Client, key: &str, value: &str) -> i64 {
    loop {
        if let Ok(done) = etcd.put(key, value).timeout(TEST_TIMEOUT).await {
            return done.header.revision;
        }
    }
}

/// Breaks the member that carries a watch, and gives how long after the next write had succeeded the watch showed it.
/// The write itself may have to wait for an election.
async fn resumes_after(hit: impl AsyncFnOnce(&Cluster, &Client, usize)) -> Duration {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    let member = carrier(&cluster).await;
    hit(&cluster, &etcd, member).await;
    let began = Instant::now();
    // A write whose outcome is unknown is made again; the watch shows what was applied.
    let written = put(&etcd, "k", "v").await;
    let succeeded = Instant::now();
    while next_change(&mut watch).await.0 < written {}
    let took = succeeded.elapsed();
    println!(
        "written after {:?}, shown after {took:?}",
        succeeded - began
    );
    drop(watch);
    etcd.shutdown().await;
    took
}

#[tokio::test]
async fn watch_leaves_killed_member() {
    let took = resumes_after(async |cluster, _, member| cluster.member(member).kill()).await;
    assert!(took < Duration::from_secs(5));
}

#[tokio::test]
async fn watch_leaves_frozen_member() {
    let took = resumes_after(async |cluster, _, member| cluster.member(member).freeze()).await;
    assert!(took < Duration::from_secs(8));
}

#[tokio::test]
async fn watch_leaves_leaderless_member() {
    let took = resumes_after(async |cluster, _, member| cluster.isolate(member)).await;
    assert!(took < Duration::from_secs(8));
}

#[tokio::test]
async fn watch_leaves_removed_member() {
    let took = resumes_after(async |cluster, _, member| cluster.remove_member(member).await).await;
    assert!(took < Duration::from_secs(5));
}

#[tokio::test]
async fn watch_leaves_removed_endpoint() {
    let took = resumes_after(async |cluster, etcd, member| {
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
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let patient = etcd.watch("k").notices();
    let mut patient = patient.await.unwrap();
    let longest = Duration::from_millis(700);
    let mut watch = etcd.watch("k").max_outage(longest).await.unwrap();
    let began = Instant::now();
    cluster.member(0).client_link().set(Fault::Refuse);
    assert!(matches!(
        read_to_end(&mut watch).await,
        WatchEnd::OutageTooLong { last: Some(_) }
    ));
    assert!(began.elapsed() >= longest);
    cluster.heal();
    assert!(matches!(
        next_item(&mut patient).await,
        WatchItem::Disconnected(_)
    ));
    assert!(matches!(next_item(&mut patient).await, WatchItem::Resumed));
    etcd.put("k", "v").timeout(TEST_TIMEOUT).await.unwrap();
    next_change(&mut patient).await;
    etcd.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twice_interrupted_replay_loses_no_event() {
    const REVISIONS: usize = 4000;
    const FAR: Duration = Duration::from_millis(150);
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut writers = Vec::new();
    for writer in 0..40 {
        let etcd = etcd.clone();
        writers.push(tokio::spawn(async move {
            for n in 0..REVISIONS / 40 {
                let value = format!("{writer}/{n}/{}", "v".repeat(4000));
                put(&etcd, &format!("k/{writer}"), &value).await;
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let last = cluster.revision().await;
    // So far away, a window's worth is under way at a time: when the first events are read, thousands are to come.
    for member in cluster.members() {
        member.client_link().set(Fault::Delay(FAR));
    }
    let open = etcd.watch("k/").prefix().start_revision(1).notices();
    let mut watch: Watch = open.progress_notify().await.unwrap();
    let mut records = Vec::new();
    let mut cuts = 0;
    while watch.revision() < last {
        let told = to_record(next_item(&mut watch).await);
        let first = matches!(told, Some(Record::Events { .. }))
            && matches!(records.last(), None | Some(Record::Resumed));
        if first && cuts < 2 {
            cuts += 1;
            for member in cluster.members() {
                member.client_link().reset_now();
            }
            if cuts == 2 {
                cluster.heal();
            }
        }
        records.extend(told);
    }
    record_progress(&mut watch, last, &mut records).await;
    let breaks = |record: &&Record| matches!(record, Record::Disconnected);
    assert!(records.iter().filter(breaks).count() >= 2);
    let history = actual_history(&cluster).await;
    validators::all(&Request::prefix("k/", 1), &records, &history).unwrap();
    etcd.shutdown().await;
}
