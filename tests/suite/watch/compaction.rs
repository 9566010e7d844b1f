//! Watches that need compacted revisions.

use actix_etcd::{Client, WatchEvent, watch::WatchEnd};
use testbed::{Cluster, Fault};

use crate::support::{
    connected_cluster::connect,
    watch_items::{next_change, next_item, read_to_end},
    watcher_metrics::write_until_watch_pauses,
};

/// Makes all proxies refuse connections. Direct endpoints stay reachable.
fn disconnect_proxies(cluster: &Cluster) {
    for member in cluster.members() {
        member.client_link().set(Fault::Refuse);
    }
}

/// Changes, deletes and creates a key, then compacts. Returns the compacted revision.
async fn write_and_compact(direct: &Client) -> i64 {
    direct.put("k/changed", "2").await.unwrap();
    direct.delete("k/deleted").await.unwrap();
    let last = direct.put("k/created", "1").await.unwrap().header.revision;
    direct.put("other", "1").await.unwrap();
    direct.compact(last + 1).await.unwrap();
    last + 1
}

/// Returns a client behind the proxies and a direct one, after writing the keys.
async fn proxied_and_direct_clients(cluster: &Cluster) -> (Client, Client) {
    let etcd = connect(cluster.endpoints()).await;
    let direct = connect(cluster.direct_endpoints()).await;
    for key in ["k/same", "k/changed", "k/deleted"] {
        direct.put(key, "1").await.unwrap();
    }
    (etcd, direct)
}

#[tokio::test]
async fn watch_from_compacted_revision_ends_as_compacted() {
    let cluster = Cluster::start(1).await;
    let (etcd, direct) = proxied_and_direct_clients(&cluster).await;
    let compacted = write_and_compact(&direct).await;
    let mut unaffected = etcd.watch("k/").prefix().await.unwrap();
    let mut watch = etcd.watch("k/").prefix().start_revision(2).await.unwrap();
    match read_to_end(&mut watch).await {
        WatchEnd::Compacted { revision } => assert_eq!(revision, compacted),
        other => panic!("{other}"),
    }
    etcd.put("k/live", "1").await.unwrap();
    assert_eq!(next_change(&mut unaffected).await.1, ["k/live"]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn compaction_while_disconnected_ends_watch() {
    let cluster = Cluster::start(3).await;
    let (etcd, direct) = proxied_and_direct_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().await.unwrap();
    disconnect_proxies(&cluster);
    let compacted = write_and_compact(&direct).await;
    cluster.heal();
    match read_to_end(&mut watch).await {
        WatchEnd::Compacted { revision } => assert_eq!(revision, compacted),
        other => panic!("{other}"),
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn compaction_while_paused_ends_watch_after_buffered_events() {
    let cluster = Cluster::start(1).await;
    let (etcd, direct) = proxied_and_direct_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().buffer(5).await.unwrap();
    write_until_watch_pauses(&cluster, &direct, "k/changed").await;
    let compacted = write_and_compact(&direct).await;
    let mut seen = watch.revision();
    let end = loop {
        match next_item(&mut watch).await {
            WatchEvent::Events(events) => {
                assert_eq!(events.revision(), seen + 1);
                seen += 1;
            }
            WatchEvent::Ended(end) => break end,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(end, WatchEnd::Compacted { revision } if revision == compacted));
    etcd.shutdown().await;
}

#[tokio::test]
async fn compaction_behind_cursor_does_not_affect_watch() {
    let cluster = Cluster::start(3).await;
    let (etcd, direct) = proxied_and_direct_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().await.unwrap();
    let seen = direct.put("k/seen", "1").await.unwrap().header.revision;
    assert_eq!(next_change(&mut watch).await.0, seen);
    disconnect_proxies(&cluster);
    direct.put("other", "1").await.unwrap();
    direct.compact(seen + 1).await.unwrap();
    let missed = direct.put("k/missed", "1").await.unwrap().header.revision;
    cluster.heal();
    assert_eq!(
        next_change(&mut watch).await,
        (missed, vec!["k/missed".into()])
    );
    etcd.shutdown().await;
}

#[tokio::test]
async fn resync_reports_differences_and_continues() {
    let cluster = Cluster::start(3).await;
    let (etcd, direct) = proxied_and_direct_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().resync().await.unwrap();
    direct.put("k/before", "1").await.unwrap();
    assert_eq!(next_change(&mut watch).await.1, ["k/before"]);
    disconnect_proxies(&cluster);
    let compacted = write_and_compact(&direct).await;
    cluster.heal();
    let WatchEvent::Resynced(resynced) = next_item(&mut watch).await else {
        panic!("expected a resync");
    };
    assert!(resynced.revision >= compacted);
    let keys = |kvs: &[actix_etcd::kv::KeyValue]| -> Vec<_> {
        kvs.iter().map(|kv| kv.key.clone()).collect()
    };
    assert_eq!(keys(&resynced.created), ["k/created"]);
    assert_eq!(keys(&resynced.changed), ["k/changed"]);
    assert_eq!(resynced.deleted, ["k/deleted"]);
    let after = etcd.put("k/same", "2").await.unwrap().header.revision;
    assert_eq!(
        next_change(&mut watch).await,
        (after, vec!["k/same".into()])
    );
    etcd.shutdown().await;
}
