//! Hedged watches: on which members they run, and how they pause, resync and end.

use std::time::Duration;

use actix_etcd::{
    Client, Watch, WatchEvent,
    test_faults::{crash_watch, crash_watch_hub, crash_watch_streams},
    watch::WatchEnd,
};
use testbed::{
    Cluster, Fault,
    validators::{self, Record, Request},
};

use crate::support::{
    auth_cluster::{connect_as, connect_as_root, start_with_auth},
    connected_cluster::connect,
    leg_members::{wait_for_legs, wait_for_legs_without},
    message_recorder::record_messages,
    wait::{hold, until, until_async},
    watch_items::{next_change, next_item, read_to_end},
    watch_recorder::{
        WatchRecorder, actual_history, record_progress, start_with_progress, to_record,
    },
    watcher_metrics::{wait_for_watchers, write_until_watch_pauses},
    write_load::WriteLoad,
};

/// Longer than the interval at which a leg without a member looks for one.
const LEG_RETRY: Duration = Duration::from_secs(1);

async fn put(etcd: &Client, key: &str) -> i64 {
    let put = etcd.put(key, "v").timeout(Duration::from_secs(20));
    put.await.unwrap().header.revision
}

fn refuse_all(cluster: &Cluster) {
    for member in cluster.members() {
        member.client_link().set(Fault::Refuse);
    }
}

/// Writes the key `k`. The next item of the watch must be that change.
async fn expect_next_write(etcd: &Client, watch: &mut Watch) {
    let revision = put(etcd, "k").await;
    let item = next_item(watch).await;
    assert!(
        matches!(&item, WatchEvent::Events(events) if events.revision() == revision),
        "{item:?}"
    );
}

#[tokio::test]
async fn hedged_watch_runs_on_two_members_until_dropped() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k").hedged().await.unwrap();
    let start = watch.revision();
    wait_for_legs(&cluster, 2).await;
    wait_for_watchers(&cluster, 2.0).await;
    for n in 1..=20 {
        assert_eq!(put(&etcd, "k").await, start + n);
        assert_eq!(next_change(&mut watch).await.0, start + n);
    }
    drop(watch);
    wait_for_watchers(&cluster, 0.0).await;
    // The second leg of a watch that ends at once is not left behind.
    for _ in 0..20 {
        drop(etcd.watch("k").hedged().await.unwrap());
    }
    let mut cancelled = etcd.watch("k").hedged().await.unwrap();
    cancelled.cancel();
    assert!(matches!(
        read_to_end(&mut cancelled).await,
        WatchEnd::Cancelled
    ));
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn hedged_watch_regains_second_member() {
    let cluster = Cluster::start(3).await;
    let endpoints = cluster.endpoints();
    let etcd = connect(&endpoints[..2]).await;
    let open = etcd.watch("k").hedged().status_events();
    let mut watch = open.await.unwrap();
    for leg in wait_for_legs(&cluster, 2).await {
        cluster.member(leg).client_link().set(Fault::Refuse);
        wait_for_watchers(&cluster, 1.0).await;
        let revision = put(&etcd, "k").await;
        assert_eq!(next_change(&mut watch).await.0, revision);
        cluster.heal();
        wait_for_legs(&cluster, 2).await;
        wait_for_watchers(&cluster, 2.0).await;
    }
    expect_next_write(&etcd, &mut watch).await;
    etcd.shutdown().await;
    assert!(matches!(read_to_end(&mut watch).await, WatchEnd::Shutdown));
}

#[tokio::test]
async fn hedged_watch_counts_endpoints_of_one_member_once() {
    let cluster = Cluster::start(1).await;
    let endpoints = [cluster.endpoints(), cluster.direct_endpoints()].concat();
    let etcd = connect(endpoints).await;
    until("both endpoints are ready", || {
        let endpoints = etcd.connectivity();
        endpoints
            .iter()
            .all(|endpoint| endpoint.member_id.is_some())
    })
    .await;
    let mut watch = etcd.watch("k").hedged().await.unwrap();
    hold(LEG_RETRY).await;
    wait_for_watchers(&cluster, 1.0).await;
    let revision = put(&etcd, "k").await;
    assert_eq!(next_change(&mut watch).await.0, revision);
    assert!(watch.request_progress().await.unwrap() >= revision);
    etcd.shutdown().await;
}

#[tokio::test]
async fn hedged_watch_reports_outage_of_both_members_only() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let max_outage = Duration::from_secs(2);
    let open = etcd.watch("k").hedged().status_events();
    let mut watch = open.max_outage(max_outage).await.unwrap();
    let legs = wait_for_legs(&cluster, 2).await;
    let others: Vec<_> = (0..3).filter(|member| *member != legs[0]).collect();
    for member in &others {
        cluster.member(*member).client_link().set(Fault::Refuse);
    }
    wait_for_watchers(&cluster, 1.0).await;
    hold(max_outage + LEG_RETRY).await;
    expect_next_write(&etcd, &mut watch).await;
    // The outage begins with the loss of the last member.
    refuse_all(&cluster);
    assert!(matches!(
        next_item(&mut watch).await,
        WatchEvent::Disconnected(_)
    ));
    cluster.heal();
    assert!(matches!(next_item(&mut watch).await, WatchEvent::Resumed));
    wait_for_legs(&cluster, 2).await;
    refuse_all(&cluster);
    assert!(matches!(
        next_item(&mut watch).await,
        WatchEvent::Disconnected(_)
    ));
    assert!(matches!(
        read_to_end(&mut watch).await,
        WatchEnd::OutageTooLong { last: Some(_) }
    ));
    etcd.shutdown().await;
}

/// Writes other keys and compacts them, so that the position of an idle watch is compacted.
async fn compact_idle_watch(cluster: &Cluster, etcd: &Client) {
    for _ in 0..10 {
        put(etcd, "other").await;
    }
    let revision = cluster.revision().await;
    etcd.compact(revision).physical().await.unwrap();
}

#[tokio::test]
async fn hedged_watch_survives_compaction_on_one_leg() {
    for leg in 0..2 {
        let cluster = Cluster::start(3).await;
        let etcd = connect(cluster.endpoints()).await;
        let mut watch = etcd.watch("k").hedged().status_events().await.unwrap();
        let left = wait_for_legs(&cluster, 2).await[leg];
        compact_idle_watch(&cluster, &etcd).await;
        cluster.member(left).client_link().set(Fault::Refuse);
        // The leg attaches to the third member at a compacted revision, is cancelled there, and attaches again.
        wait_for_legs_without(&cluster, left).await;
        expect_next_write(&etcd, &mut watch).await;
        wait_for_legs_without(&cluster, left).await;
        etcd.shutdown().await;
    }
}

/// Interrupts both legs of the watch while their position is compacted, after a change that is lost.
async fn compact_during_outage(cluster: &Cluster) -> i64 {
    let direct = connect(cluster.direct_endpoints()).await;
    wait_for_legs(cluster, 2).await;
    refuse_all(cluster);
    wait_for_watchers(cluster, 0.0).await;
    let lost = put(&direct, "k").await;
    compact_idle_watch(cluster, &direct).await;
    cluster.heal();
    direct.shutdown().await;
    lost
}

#[tokio::test]
async fn compaction_past_both_legs_ends_hedged_watch() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k").hedged().await.unwrap();
    compact_during_outage(&cluster).await;
    assert!(matches!(
        read_to_end(&mut watch).await,
        WatchEnd::Compacted { .. }
    ));
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn hedged_watch_resyncs_once_after_compaction() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    put(&etcd, "k").await;
    let mut watch = etcd.watch("k").hedged().resync().await.unwrap();
    for _ in 0..2 {
        let lost = compact_during_outage(&cluster).await;
        let WatchEvent::Resynced(resynced) = next_item(&mut watch).await else {
            panic!("no resync");
        };
        assert!(resynced.revision >= lost);
        let changed: Vec<i64> = resynced.changed.iter().map(|kv| kv.mod_revision).collect();
        assert_eq!(changed, [lost]);
        assert!(resynced.created.is_empty() && resynced.deleted.is_empty());
        wait_for_legs(&cluster, 2).await;
        expect_next_write(&etcd, &mut watch).await;
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn hedged_watch_of_slow_reader_pauses_without_loss() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k").hedged().buffer(20).status_events();
    let mut watch = open.await.unwrap();
    let start = watch.revision();
    wait_for_legs(&cluster, 2).await;
    let mut records = Vec::new();
    for _ in 0..3 {
        write_until_watch_pauses(&cluster, &etcd, "k").await;
        let last = cluster.revision().await;
        while watch.revision() < last {
            records.extend(to_record(next_item(&mut watch).await));
        }
        wait_for_legs(&cluster, 2).await;
    }
    let revision = put(&etcd, "k").await;
    record_progress(&mut watch, revision, &mut records).await;
    assert!(records.contains(&Record::Paused));
    assert!(records.contains(&Record::Resumed));
    assert!(!records.contains(&Record::Disconnected));
    let history = actual_history(&cluster).await;
    validators::all(&Request::key("k", start + 1), &records, &history).unwrap();
    etcd.shutdown().await;
}

#[actix::test]
async fn hedged_watch_is_delivered_to_actor() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let (received, recipient) = record_messages::<WatchEvent>();
    let open = etcd.watch("k").hedged().deliver_to(recipient);
    let handle = open.await.unwrap();
    let mut written = Vec::new();
    for leg in wait_for_legs(&cluster, 2).await {
        cluster.member(leg).client_link().set(Fault::Freeze);
        let direct = cluster.member((leg + 1) % 3).direct_endpoint();
        let writer = connect([direct]).await;
        for _ in 0..20 {
            written.push(put(&writer, "k").await);
        }
        let last = written[written.len() - 1];
        until("the last write is delivered", || handle.revision() >= last).await;
        cluster.heal();
        wait_for_legs(&cluster, 2).await;
        writer.shutdown().await;
    }
    handle.cancel();
    let ends = |event: &WatchEvent| matches!(event, WatchEvent::Ended(WatchEnd::Cancelled));
    until("the end is delivered", || {
        received.lock().unwrap().iter().any(ends)
    })
    .await;
    let revisions: Vec<i64> = received
        .lock()
        .unwrap()
        .iter()
        .filter_map(revision)
        .collect();
    assert_eq!(revisions, written);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

fn revision(event: &WatchEvent) -> Option<i64> {
    match event {
        WatchEvent::Events(events) => Some(events.revision()),
        _ => None,
    }
}

#[tokio::test]
async fn hedged_watch_is_refused_without_permission() {
    let cluster = start_with_auth(Cluster::builder().members(3)).await;
    let root = connect_as_root(&cluster).await;
    cluster.add_user("ann", "word", Some("k/")).await;
    let ann = connect_as(&cluster, "ann", "word").await;
    let mut watch: Watch = ann.watch("k/").prefix().hedged().await.unwrap();
    wait_for_legs(&cluster, 2).await;
    let revision = put(&root, "k/1").await;
    assert_eq!(next_change(&mut watch).await.0, revision);
    assert!(ann.watch("other").hedged().await.is_err());
    root.users()
        .revoke_role("ann", "role-of-ann")
        .await
        .unwrap();
    for member in cluster.members() {
        member.client_link().reset_now();
    }
    assert!(matches!(
        read_to_end(&mut watch).await,
        WatchEnd::PermissionDenied(_)
    ));
    wait_for_watchers(&cluster, 0.0).await;
    ann.shutdown().await;
    root.shutdown().await;
}

#[tokio::test]
async fn hedged_watch_survives_panics_under_load() {
    const CRASHES: usize = 12;
    let cluster = start_with_progress().await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k/").prefix().hedged().status_events();
    let watch = open.progress_notify().await.unwrap();
    wait_for_legs(&cluster, 2).await;
    let crash_first_leg = crash_watch(&watch);
    let recorder = WatchRecorder::record("hedged", watch, Request::prefix("k/", 0));
    let load = WriteLoad::start(&etcd);
    for n in 0..CRASHES {
        let target = cluster.revision().await + 25;
        let reached = async || cluster.revision().await >= target;
        until_async("writes continue", reached).await;
        match n % 3 {
            0 => crash_first_leg(),
            1 => crash_watch_streams(&etcd),
            _ => assert!(crash_watch_hub(&etcd).await),
        }
    }
    let last = load.stop(&etcd).await;
    let history = actual_history(&cluster).await;
    recorder.check(last, &history).await;
    etcd.shutdown().await;
}
