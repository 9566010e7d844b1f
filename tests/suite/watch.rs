//! Watches on a real cluster.

use std::time::Duration;

use actix_etcd::{Client, Watch, WatchItem};
use testbed::Cluster;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

/// The next revision and the keys that changed in it.
async fn next(watch: &mut Watch) -> (i64, Vec<String>) {
    loop {
        let item = timeout(SOON, watch.next())
            .await
            .expect("the watch is silent")
            .expect("the watch has ended");
        match item {
            WatchItem::Events(events) => {
                let key = |event: &actix_etcd::proto::Event| {
                    String::from_utf8_lossy(event.key()).into_owned()
                };
                return (events.revision(), events.iter().map(key).collect());
            }
            WatchItem::Ended(why) => panic!("the watch ended: {why}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn events_arrive_and_go_on_after_every_connection_was_reset() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watch = etcd.watch("k/").prefix().await.unwrap();
    etcd.put("k/1", "a").await.unwrap();
    etcd.put("other", "a").await.unwrap();
    assert_eq!(next(&mut watch).await.1, ["k/1"]);
    for member in cluster.members() {
        member.client_link().reset_now();
    }
    let put = etcd.put("k/2", "b").await.unwrap();
    assert_eq!(
        next(&mut watch).await,
        (put.header.revision, vec!["k/2".to_owned()])
    );
    assert_eq!(watch.revision(), put.header.revision);
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_dropped_watch_ends_on_the_server() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watches = Vec::new();
    for n in 0..20 {
        watches.push(etcd.watch(format!("k/{n}")).await.unwrap());
    }
    watchers(&cluster, 20.0).await;
    watches.truncate(3);
    watchers(&cluster, 3.0).await;
    drop(watches);
    watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

/// Waits until the members together have so many watchers, and without any no stream either.
async fn watchers(cluster: &Cluster, wanted: f64) {
    let figures = async || {
        let (mut watchers, mut streams) = (0.0, 0.0);
        for member in cluster.members() {
            let figure = async |name| member.metric(name).await.unwrap_or_default();
            watchers += figure("etcd_debugging_mvcc_watcher_total").await;
            streams += figure("etcd_debugging_mvcc_watch_stream_total").await;
        }
        (watchers, streams)
    };
    let wait = async {
        loop {
            let (watchers, streams) = figures().await;
            if (watchers - wanted).abs() < 0.5 && (wanted > 0.0 || streams < 0.5) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if timeout(SOON, wait).await.is_err() {
        panic!("wanted {wanted} watchers, there are {:?}", figures().await);
    }
}
