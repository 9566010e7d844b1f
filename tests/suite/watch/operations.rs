//! Opening, reading and ending watches on a real cluster.

use actix_etcd::{ErrorKind, WatchEvent, watch::WatchEnd};
use testbed::Cluster;

use crate::support::{
    connected_cluster::connect,
    watch_items::{next_change, next_item, read_to_end},
    watcher_metrics::wait_for_watchers,
};

#[tokio::test]
async fn events_continue_after_connection_resets() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k/").prefix().await.unwrap();
    etcd.put("k/1", "a").await.unwrap();
    etcd.put("other", "a").await.unwrap();
    assert_eq!(next_change(&mut watch).await.1, ["k/1"]);
    for member in cluster.members() {
        member.client_link().reset_now();
    }
    // The outcome of a put is unknown if its connection is reset, so it is repeated until one succeeds.
    let written = loop {
        if let Ok(response) = etcd.put("k/2", "b").await {
            break response.header.revision;
        }
    };
    while watch.revision() < written {
        assert_eq!(next_change(&mut watch).await.1, ["k/2"]);
    }
    assert_eq!(watch.revision(), written);
    etcd.shutdown().await;
}

#[tokio::test]
async fn dropped_watch_is_cancelled_on_server() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watches = Vec::new();
    for n in 0..20 {
        watches.push(etcd.watch(format!("k/{n}")).await.unwrap());
    }
    wait_for_watchers(&cluster, 20.0).await;
    watches.truncate(3);
    wait_for_watchers(&cluster, 3.0).await;
    drop(watches);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn watch_ends_with_exactly_one_reason() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut cancelled = etcd.watch("k").await.unwrap();
    etcd.put("k", "v").await.unwrap();
    next_change(&mut cancelled).await;
    cancelled.cancel();
    assert!(matches!(
        read_to_end(&mut cancelled).await,
        WatchEnd::Cancelled
    ));
    wait_for_watchers(&cluster, 0.0).await;
    let mut shut_down = etcd.watch("k").await.unwrap();
    let second_handle = etcd.clone();
    etcd.shutdown().await;
    assert!(matches!(
        read_to_end(&mut shut_down).await,
        WatchEnd::Shutdown
    ));
    let error = second_handle.watch("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
}

#[tokio::test]
async fn dropping_last_client_ends_watches() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k").await.unwrap();
    drop(etcd);
    assert!(matches!(read_to_end(&mut watch).await, WatchEnd::Shutdown));
}

#[tokio::test]
async fn watch_options_take_effect() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
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
    let WatchEvent::Events(first) = next_item(&mut puts).await else {
        panic!("expected events");
    };
    assert!(first[0].is_create() && first[0].prev_kv.is_none());
    let WatchEvent::Events(second) = next_item(&mut puts).await else {
        panic!("expected events");
    };
    assert!(second[0].is_put() && !second[0].is_create());
    assert_eq!(second[0].prev_kv.as_ref().unwrap().value, "a");
    let mut deletes = from_start().range("k/2").filter_puts().await.unwrap();
    let WatchEvent::Events(deleted) = next_item(&mut deletes).await else {
        panic!("expected events");
    };
    assert!(deleted[0].is_delete() && deleted.revision() == start + 2);
    let mut all = etcd
        .watch("k")
        .from_key()
        .start_revision(start)
        .await
        .unwrap();
    assert_eq!(next_change(&mut all).await.0, start);
    etcd.put("later", "x").await.unwrap();
    while next_change(&mut all).await.1 != ["later"] {}
    etcd.shutdown().await;
}

#[tokio::test]
async fn requested_progress_arrives_after_its_events() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
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
        match next_item(&mut watch).await {
            WatchEvent::Events(events) => seen = events.revision(),
            WatchEvent::Progress(revision) if revision >= written => break,
            _ => {}
        }
    }
    assert_eq!(seen, written);
    assert!(watch.revision() >= written);
    watch.cancel();
    read_to_end(&mut watch).await;
    let error = watch.request_progress().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WatchCanceled);
    etcd.shutdown().await;
}

#[tokio::test]
async fn invalid_watch_is_rejected_before_sending() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let results = [
        etcd.watch("").await,
        etcd.watch("a").prefix().from_key().await,
        etcd.watch("a").start_revision(-1).await,
        etcd.watch("a").buffer(0).await,
        etcd.watch("a").buffer_bytes(0).await,
        etcd.watch("a").resync().filter_puts().await,
    ];
    for result in results {
        let kind = result.unwrap_err().kind();
        assert!(matches!(
            kind,
            ErrorKind::InvalidArgument | ErrorKind::EmptyKey
        ));
    }
    etcd.shutdown().await;
}
