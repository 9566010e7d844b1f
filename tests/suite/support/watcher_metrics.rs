//! Watchers and watch streams on the members of a cluster, from etcd's metrics.

use std::time::Duration;

use actix_etcd::Client;
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::watch_items::WATCH_TIMEOUT;

/// Returns the total numbers of watchers and of watch streams on all members.
async fn watchers_and_streams(cluster: &Cluster) -> (f64, f64) {
    let (mut watchers, mut streams) = (0.0, 0.0);
    for member in cluster.members() {
        let metric = async |name| member.metric(name).await.unwrap_or_default();
        watchers += metric("etcd_debugging_mvcc_watcher_total").await;
        streams += metric("etcd_debugging_mvcc_watch_stream_total").await;
    }
    (watchers, streams)
}

/// Waits until all members together have this many watchers, and no stream if there are no watchers.
pub async fn wait_for_watchers(cluster: &Cluster, expected: f64) {
    let wait = async {
        loop {
            let (watchers, streams) = watchers_and_streams(cluster).await;
            if (watchers - expected).abs() < 0.5 && (expected > 0.0 || streams < 0.5) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = timeout(WATCH_TIMEOUT, wait).await.is_ok();
    assert!(
        reached,
        "expected {expected} watchers; (watchers, streams): {:?}",
        watchers_and_streams(cluster).await
    );
}

/// Returns the index of the member that has the only watch of the cluster.
pub async fn watched_member(cluster: &Cluster) -> usize {
    wait_for_watchers(cluster, 1.0).await;
    for member in cluster.members() {
        let watchers = member.metric("etcd_debugging_mvcc_watcher_total").await;
        if watchers.unwrap_or_default() > 0.5 {
            return member.index();
        }
    }
    panic!("no member has the watch");
}

/// Writes until the only watch of the cluster is paused, which cancels it on the server. The watch must not be read.
pub async fn write_until_watch_pauses(cluster: &Cluster, etcd: &Client, key: &str) {
    let fill = async {
        // Events that arrive together enter the buffer together, so the necessary number of writes is unknown.
        while watchers_and_streams(cluster).await.0 > 0.5 {
            for n in 0..10 {
                etcd.put(key, n.to_string()).await.unwrap();
            }
        }
    };
    let paused = timeout(WATCH_TIMEOUT, fill).await.is_ok();
    assert!(paused, "the watch was not paused");
}
