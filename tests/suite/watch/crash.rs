//! The guarantees of a watch while actors panic under load.

use std::cell::Cell;

use actix_etcd::{
    Client, WatchEvent,
    test_faults::{crash_connection_now, crash_watch, crash_watch_hub, crash_watch_streams},
    watch::WatchEnd,
};
use testbed::{
    Cluster,
    validators::{Record, Request},
};

use crate::support::{
    connected_cluster::connect,
    wait::until_async,
    watch_items::{next_change, next_item, read_to_end},
    watch_recorder::{WatchRecorder, actual_history, progress_count, start_with_progress},
    write_load::WriteLoad,
};

/// Makes the actor of one watch panic.
type CrashWatch = Box<dyn Fn() + Send>;

/// Number of crashes per actor. The supervisor backs off up to one second after repeated panics, while the mailbox
/// fills. A fixed number keeps a slow machine from causing more panics.
const CRASHES: usize = 8;
/// Minimum number of writes between two crashes.
const WRITES_BETWEEN_CRASHES: i64 = 25;

/// Calls `crash` repeatedly under load and checks all watches. Returns the records of each watch.
async fn crash_under_load(crash: impl AsyncFn(&Client, &[CrashWatch])) -> Vec<Vec<Record>> {
    let cluster = start_with_progress().await;
    let etcd = connect(cluster.endpoints()).await;
    let mut recorders = Vec::new();
    let mut crash_watches: Vec<CrashWatch> = Vec::new();
    for n in 0..6 {
        let request = Request::prefix("k/", n % 2);
        let open = etcd.watch("k/").prefix().status_events().progress_notify();
        let watch = open.start_revision(n % 2).await.unwrap();
        crash_watches.push(Box::new(crash_watch(&watch)));
        recorders.push(WatchRecorder::record(&format!("watch {n}"), watch, request));
    }
    let load = WriteLoad::start(&etcd);
    for _ in 0..CRASHES {
        let target = cluster.revision().await + WRITES_BETWEEN_CRASHES;
        let reached = async || cluster.revision().await >= target;
        until_async("writes continue", reached).await;
        crash(&etcd, &crash_watches).await;
    }
    let last = load.stop(&etcd).await;
    let history = actual_history(&cluster).await;
    let mut all_records = Vec::new();
    for recorder in recorders {
        all_records.push(recorder.check(last, &history).await);
    }
    let progress: usize = all_records
        .iter()
        .map(|records| progress_count(records))
        .sum();
    assert!(progress > 0, "no progress item under load");
    etcd.shutdown().await;
    all_records
}

#[tokio::test]
async fn watch_actor_panic_loses_no_event() {
    let all_records = crash_under_load(async |_, crash_watches| {
        for crash in crash_watches {
            crash();
        }
    })
    .await;
    for records in all_records {
        assert!(records.contains(&Record::Disconnected), "no disconnect");
        assert!(records.contains(&Record::Resumed), "not resumed: no crash");
    }
}

#[tokio::test]
async fn stream_actor_panic_loses_no_event() {
    let all_records = crash_under_load(async |etcd, _| crash_watch_streams(etcd)).await;
    for records in all_records {
        assert!(records.contains(&Record::Resumed), "not resumed: no crash");
    }
}

#[tokio::test]
async fn hub_panic_loses_no_event() {
    let rounds = Cell::new(0);
    let all_records = crash_under_load(async |etcd, _| {
        rounds.set(rounds.get() + 1);
        if rounds.get() % 2 == 0 {
            crash_watch_streams(etcd);
            assert!(crash_watch_hub(etcd).await, "the actor did not panic");
        }
    })
    .await;
    for records in all_records {
        assert!(records.contains(&Record::Resumed), "not resumed: no crash");
    }
}

#[tokio::test]
async fn connection_actor_panic_loses_no_event() {
    crash_under_load(async |etcd, _| {
        for endpoint in etcd.endpoints() {
            let crashed = crash_connection_now(etcd, &endpoint).await;
            assert!(crashed.unwrap(), "the actor did not panic");
        }
    })
    .await;
}

#[tokio::test]
async fn crashed_watch_continues_and_ends_at_shutdown() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k").await.unwrap();
    let crash = crash_watch(&watch);
    crash();
    assert!(crash_watch_hub(&etcd).await);
    etcd.put("k", "v").await.unwrap();
    next_change(&mut watch).await;
    let mut second = etcd.watch("k").await.unwrap();
    etcd.put("k", "w").await.unwrap();
    assert!(matches!(
        next_item(&mut second).await,
        WatchEvent::Events(_)
    ));
    crash();
    etcd.shutdown().await;
    assert!(matches!(read_to_end(&mut watch).await, WatchEnd::Shutdown));
    assert!(matches!(read_to_end(&mut second).await, WatchEnd::Shutdown));
}
