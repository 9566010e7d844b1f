//! The six promises of a watch, over one logical watch while members and links fail at random.
//!
//! `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Chaos, ChaosKind, Cluster, validators::Request};

use crate::support::{
    wait::until_async,
    watch_recorder::{PROGRESS_INTERVAL, WatchRecorder, actual_history, progress_count},
    write_load::WriteLoad,
};

/// A revision that is not there when the watches are opened.
const LATER: i64 = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_keeps_guarantees_under_random_faults() {
    let cluster = Cluster::builder().members(3);
    let cluster = cluster
        .progress_notify_interval(PROGRESS_INTERVAL)
        .start()
        .await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let prev_kv = |request: Request| Request {
        prev_kv: true,
        ..request
    };
    let requests = [
        ("prefix", Request::prefix("k/", 0)),
        (
            "prefix from the start, prev_kv",
            prev_kv(Request::prefix("k/", 1)),
        ),
        ("key", Request::key("k/0", 0)),
        (
            "key from the start, prev_kv",
            prev_kv(Request::key("k/0", 1)),
        ),
        ("all that comes later", Request::prefix("k/", LATER)),
    ];
    let mut watches = Vec::new();
    for (name, request) in requests {
        watches.push(WatchRecorder::open(name, &etcd, request).await);
    }
    let asking = etcd.watch("k/0").await.unwrap();
    let progress = tokio::spawn(async move {
        loop {
            // Answered or not: that everybody on the stream hears of it is what counts.
            let _ = asking.request_progress().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let load = WriteLoad::start(&etcd);
    let chaos = Chaos::from_env("watch");
    let faults = chaos.run(&cluster, &ChaosKind::ALL).await;
    progress.abort();
    let later = async || cluster.revision().await > LATER;
    until_async("the watch of the future has something to tell", later).await;
    let last = load.stop(&etcd).await;
    let history = actual_history(&cluster).await;
    println!("{} faults, {last} revisions", faults.len());
    let mut told = 0;
    for watch in watches {
        told += progress_count(&watch.check(last, &history).await);
    }
    assert!(told > 0, "no progress was told while things failed");
    println!("progress told {told} times");
    etcd.shutdown().await;
}
