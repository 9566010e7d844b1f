//! Watches on a real cluster.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind, Watch, WatchEvent, watch::WatchEnd};
use testbed::Cluster;
use tokio::time::timeout;

pub const SOON: Duration = Duration::from_secs(20);

pub async fn item(watch: &mut Watch) -> WatchEvent {
    timeout(SOON, watch.next())
        .await
        .expect("the watch is silent")
        .expect("the watch has ended")
}

/// The last item, whatever comes before it.
pub async fn last_item(watch: &mut Watch) -> WatchEnd {
    let mut last = None;
    while let Some(item) = timeout(SOON, watch.next()).await.expect("no last item") {
        assert!(last.is_none(), "{item:?} after the end");
        if let WatchEvent::Ended(why) = item {
            last = Some(why);
        }
    }
    last.expect("a watch says why it ends")
}

/// The next revision and the keys that changed in it.
pub async fn next(watch: &mut Watch) -> (i64, Vec<String>) {
    loop {
        match item(watch).await {
            WatchEvent::Events(events) => {
                let key = |event: &actix_etcd::proto::Event| {
                    String::from_utf8_lossy(event.key()).into_owned()
                };
                return (events.revision(), events.iter().map(key).collect());
            }
            WatchEvent::Ended(why) => panic!("the watch ended: {why}"),
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
    // Under way while its connection is reset, a write may have been applied or not: it is made until one is sure.
    let written = loop {
        if let Ok(put) = etcd.put("k/2", "b").await {
            break put.header.revision;
        }
    };
    while watch.revision() < written {
        assert_eq!(next(&mut watch).await.1, ["k/2"]);
    }
    assert_eq!(watch.revision(), written);
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

#[tokio::test]
async fn a_watch_tells_exactly_one_reason_for_its_end() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut cancelled = etcd.watch("k").await.unwrap();
    etcd.put("k", "v").await.unwrap();
    next(&mut cancelled).await;
    cancelled.cancel();
    assert!(matches!(
        last_item(&mut cancelled).await,
        WatchEnd::Cancelled
    ));
    watchers(&cluster, 0.0).await;
    let mut shut_down = etcd.watch("k").await.unwrap();
    let dropped = etcd.clone();
    etcd.shutdown().await;
    assert!(matches!(
        last_item(&mut shut_down).await,
        WatchEnd::Shutdown
    ));
    let late = dropped.watch("k").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Shutdown);
}

#[tokio::test]
async fn the_end_of_the_last_client_is_the_end_of_its_watches() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    drop(etcd);
    assert!(matches!(last_item(&mut watch).await, WatchEnd::Shutdown));
}

#[tokio::test]
async fn options_reach_the_server() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let start = etcd.put("k/1", "a").await.unwrap().header.revision;
    etcd.put("k/1", "b").await.unwrap();
    etcd.delete("k/1").await.unwrap();
    let from_start = || etcd.watch("k/").start_revision(start);
    let mut puts = from_start()
        .prefix()
        .filter_deletes()
        .prev_kv()
        .await
        .unwrap();
    let WatchEvent::Events(first) = item(&mut puts).await else {
        panic!("events come first");
    };
    assert!(first[0].is_create() && first[0].prev_kv.is_none());
    let WatchEvent::Events(second) = item(&mut puts).await else {
        panic!("events come first");
    };
    assert!(second[0].is_put() && !second[0].is_create());
    assert_eq!(second[0].prev_kv.as_ref().unwrap().value, "a");
    let mut deletes = from_start().range("k/2").filter_puts().await.unwrap();
    let WatchEvent::Events(gone) = item(&mut deletes).await else {
        panic!("events come first");
    };
    assert!(gone[0].is_delete() && gone.revision() == start + 2);
    let mut all = etcd
        .watch("k")
        .from_key()
        .start_revision(start)
        .await
        .unwrap();
    assert_eq!(next(&mut all).await.0, start);
    etcd.put("later", "x").await.unwrap();
    while next(&mut all).await.1 != ["later"] {}
    etcd.shutdown().await;
}

#[tokio::test]
async fn requested_progress_comes_after_what_it_promises() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watch = etcd.watch("k").start_revision(1).await.unwrap();
    let mut written = 0;
    for n in 0..20 {
        written = etcd.put("k", n.to_string()).await.unwrap().header.revision;
    }
    let mut progress = 0;
    while progress < written {
        progress = watch.request_progress().await.unwrap();
    }
    let mut seen = 0;
    loop {
        match item(&mut watch).await {
            WatchEvent::Events(events) => seen = events.revision(),
            WatchEvent::Progress(revision) if revision >= written => break,
            _ => {}
        }
    }
    assert_eq!(seen, written);
    assert!(watch.revision() >= written);
    watch.cancel();
    last_item(&mut watch).await;
    let ended = watch.request_progress().await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::WatchCanceled);
    etcd.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = [
        etcd.watch("").await,
        etcd.watch("a").prefix().from_key().await,
        etcd.watch("a").start_revision(-1).await,
        etcd.watch("a").buffer(0).await,
        etcd.watch("a").resync().filter_puts().await,
    ];
    for refusal in refused {
        let kind = refusal.unwrap_err().kind();
        assert!(matches!(
            kind,
            ErrorKind::InvalidArgument | ErrorKind::EmptyKey
        ));
    }
    etcd.shutdown().await;
}

/// The watchers and the streams that the members have together.
async fn figures(cluster: &Cluster) -> (f64, f64) {
    let (mut watchers, mut streams) = (0.0, 0.0);
    for member in cluster.members() {
        let figure = async |name| member.metric(name).await.unwrap_or_default();
        watchers += figure("etcd_debugging_mvcc_watcher_total").await;
        streams += figure("etcd_debugging_mvcc_watch_stream_total").await;
    }
    (watchers, streams)
}

/// Waits until the members together have so many watchers, and without any no stream either.
pub async fn watchers(cluster: &Cluster, wanted: f64) {
    let wait = async {
        loop {
            let (watchers, streams) = figures(cluster).await;
            if (watchers - wanted).abs() < 0.5 && (wanted > 0.0 || streams < 0.5) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reached = timeout(SOON, wait).await.is_ok();
    assert!(
        reached,
        "wanted {wanted} watchers, there are {:?}",
        figures(cluster).await
    );
}

/// Writes until the only watch there is lags, with nobody reading it: it is not on the server then.
pub async fn overfill(cluster: &Cluster, etcd: &Client, key: &str) {
    let fill = async {
        // What arrives together is taken together: it is not known how much is too much.
        while figures(cluster).await.0 > 0.5 {
            for n in 0..10 {
                etcd.put(key, n.to_string()).await.unwrap();
            }
        }
    };
    let lags = timeout(SOON, fill).await.is_ok();
    assert!(lags, "the watch never lags");
}
