//! The guarantees of a watch while members, links and proxies fail at random.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Chaos, ChaosKind, ChaosPath, PathKind, validators::Request};
use tokio::task::JoinSet;

use crate::support::{
    connected_cluster::connect,
    wait::until_async,
    watch_recorder::{WatchRecorder, actual_history, progress_count, start_with_progress},
    write_load::{KEYS, WriteLoad},
};

/// A revision that does not exist yet when the watches are opened.
const FUTURE_REVISION: i64 = 150;

/// Enough that many watches are created at once, after each reconnect.
const WATCHES_PER_KEY: usize = 4;

/// Returns requests of ranges and of single keys, from different revisions, with and without previous states.
fn requests() -> Vec<(String, Request)> {
    let prev_kv = |request: Request| Request {
        prev_kv: true,
        ..request
    };
    let ranges = [
        ("prefix", Request::prefix("k/", 0)),
        (
            "prefix from the start, prev_kv",
            prev_kv(Request::prefix("k/", 1)),
        ),
        (
            "key from the start, prev_kv",
            prev_kv(Request::key("k/0", 1)),
        ),
        (
            "prefix from a future revision",
            Request::prefix("k/", FUTURE_REVISION),
        ),
    ];
    let ranges = ranges.map(|(name, request)| (name.to_owned(), request));
    let key = |n| {
        let key = format!("k/{n}");
        (format!("key {key}"), Request::key(key, 0))
    };
    let keys = (0..WATCHES_PER_KEY).flat_map(|_| (0..KEYS).map(key));
    ranges.into_iter().chain(keys).collect()
}

/// Requests progress on the stream of a watch of its own. The result does not matter: the response goes to every watch
/// of the stream.
async fn request_progress(etcd: Client) {
    let watch = etcd.watch("k/0").await.unwrap();
    loop {
        let _ = watch.request_progress().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn check_watches(path: PathKind) {
    let cluster = start_with_progress().await;
    let path = ChaosPath::open(path, &cluster).await;
    let etcd = connect(path.endpoints()).await;
    // etcd's gRPC proxy does not respond to progress requests.
    let answers_progress = path.kind() != PathKind::GrpcProxy;
    let mut opening = JoinSet::new();
    for (name, request) in requests() {
        let etcd = etcd.clone();
        opening.spawn(async move {
            if answers_progress {
                WatchRecorder::open(&name, &etcd, request).await
            } else {
                WatchRecorder::open_without_progress_requests(&name, &etcd, request).await
            }
        });
    }
    let recorders = opening.join_all().await;
    let progress_requests = answers_progress.then(|| tokio::spawn(request_progress(etcd.clone())));
    let load = WriteLoad::start(&etcd);
    let chaos = Chaos::from_env(&format!("watch, {}", path.kind().name()));
    let faults = chaos.run_through(&path, &cluster, &ChaosKind::ALL).await;
    if let Some(requests) = progress_requests {
        requests.abort();
    }
    let reached = async || cluster.revision().await > FUTURE_REVISION;
    until_async("the future revision exists", reached).await;
    let last = load.stop(&etcd).await;
    let history = actual_history(&cluster).await;
    let watches = recorders.len();
    let mut progress = 0;
    for recorder in recorders {
        progress += progress_count(&recorder.check(last, &history).await);
    }
    println!("{faults}, {last} revisions, {watches} watches, {progress} progress items");
    assert!(
        progress > 0 || !answers_progress,
        "no progress item during the faults"
    );
    etcd.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_keeps_guarantees_under_random_faults() {
    check_watches(PathKind::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_keeps_guarantees_through_tcp_balancer() {
    check_watches(PathKind::TcpBalancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_keeps_guarantees_through_grpc_proxies() {
    check_watches(PathKind::GrpcProxy).await;
}
