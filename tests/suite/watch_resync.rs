//! Watches that read their range: when they are opened, and when history is gone.

use actix_etcd::{Client, WatchItem};
use testbed::Cluster;

use crate::watch::{item, next, watchers};

#[tokio::test]
async fn a_compaction_while_the_watch_lags_is_made_up_for_by_a_resync() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let open = etcd.watch("k/").prefix().buffer(5).notices().resync();
    let mut watch = open.await.unwrap();
    for n in 0..10 {
        etcd.put("k/changed", n.to_string()).await.unwrap();
    }
    watchers(&cluster, 0.0).await;
    etcd.put("k/created", "1").await.unwrap();
    let last = etcd.delete("k/changed").await.unwrap().header.revision;
    etcd.compact(last).await.unwrap();
    let (mut seen, mut lagged) = (watch.revision(), false);
    let resynced = loop {
        match item(&mut watch).await {
            WatchItem::Events(events) => {
                assert_eq!(events.revision(), seen + 1);
                seen += 1;
            }
            WatchItem::Lagging => lagged = true,
            // The server creates the watch before it sees that its history is gone.
            WatchItem::Resumed => {}
            WatchItem::Resynced(resynced) => break resynced,
            other => panic!("{other:?}"),
        }
    };
    assert!(lagged && seen < last - 2, "it did not lag");
    assert_eq!(resynced.revision, last);
    let created: Vec<_> = resynced.created.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(created, ["k/created"]);
    assert_eq!(resynced.changed, []);
    assert_eq!(resynced.deleted, ["k/changed"]);
    let after = etcd.put("k/later", "1").await.unwrap().header.revision;
    assert_eq!(next(&mut watch).await, (after, vec!["k/later".into()]));
    etcd.shutdown().await;
}
