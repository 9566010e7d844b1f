//! The guarantees of a watch while members and links fail at random.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Chaos, ChaosKind, validators::Request};

use crate::support::{
    wait::until_async,
    watch_recorder::{WatchRecorder, actual_history, progress_count, start_with_progress},
    write_load::WriteLoad,
};

/// A revision that does not exist yet when the watches are opened.
const FUTURE_REVISION: i64 = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_keeps_guarantees_under_random_faults() {
    let cluster = start_with_progress().await;
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
        (
            "prefix from a future revision",
            Request::prefix("k/", FUTURE_REVISION),
        ),
    ];
    let mut recorders = Vec::new();
    for (name, request) in requests {
        recorders.push(WatchRecorder::open(name, &etcd, request).await);
    }
    let requester = etcd.watch("k/0").await.unwrap();
    let progress_requests = tokio::spawn(async move {
        loop {
            // The result does not matter: the response goes to every watch of the stream.
            let _ = requester.request_progress().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let load = WriteLoad::start(&etcd);
    let chaos = Chaos::from_env("watch");
    let faults = chaos.run(&cluster, &ChaosKind::ALL).await;
    progress_requests.abort();
    let reached = async || cluster.revision().await > FUTURE_REVISION;
    until_async("the future revision exists", reached).await;
    let last = load.stop(&etcd).await;
    let history = actual_history(&cluster).await;
    println!("{} faults, {last} revisions", faults.len());
    let mut progress = 0;
    for recorder in recorders {
        progress += progress_count(&recorder.check(last, &history).await);
    }
    assert!(progress > 0, "no progress item during the faults");
    println!("{progress} progress items");
    etcd.shutdown().await;
}
