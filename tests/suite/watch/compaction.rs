//! Watches whose history is compacted away.

use actix_etcd::{Client, WatchEvent, watch::WatchEnd};
use testbed::{Cluster, Fault};

use crate::watch::operations::{item, last_item, next, overfill};

/// No client gets through the proxies any more; the direct way stays.
fn cut_off(cluster: &Cluster) {
    for member in cluster.members() {
        member.client_link().set(Fault::Refuse);
    }
}

async fn write_and_compact(direct: &Client) -> i64 {
    direct.put("k/changed", "2").await.unwrap();
    direct.delete("k/deleted").await.unwrap();
    let last = direct.put("k/created", "1").await.unwrap().header.revision;
    direct.put("other", "1").await.unwrap();
    direct.compact(last + 1).await.unwrap();
    last + 1
}

async fn two_clients(cluster: &Cluster) -> (Client, Client) {
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    for key in ["k/same", "k/changed", "k/deleted"] {
        direct.put(key, "1").await.unwrap();
    }
    (etcd, direct)
}

#[tokio::test]
async fn a_watch_from_a_compacted_revision_says_from_where_it_can_be() {
    let cluster = Cluster::start(1).await;
    let (etcd, direct) = two_clients(&cluster).await;
    let oldest = write_and_compact(&direct).await;
    let mut beside = etcd.watch("k/").prefix().await.unwrap();
    let mut watch = etcd.watch("k/").prefix().start_revision(2).await.unwrap();
    match last_item(&mut watch).await {
        WatchEnd::Compacted { revision } => assert_eq!(revision, oldest),
        other => panic!("{other}"),
    }
    etcd.put("k/live", "1").await.unwrap();
    assert_eq!(next(&mut beside).await.1, ["k/live"]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_compaction_while_the_watch_is_away_ends_it_with_the_revision() {
    let cluster = Cluster::start(3).await;
    let (etcd, direct) = two_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().await.unwrap();
    cut_off(&cluster);
    let oldest = write_and_compact(&direct).await;
    cluster.heal();
    match last_item(&mut watch).await {
        WatchEnd::Compacted { revision } => assert_eq!(revision, oldest),
        other => panic!("{other}"),
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_compaction_while_the_watch_lags_ends_it_after_all_that_has_arrived() {
    let cluster = Cluster::start(1).await;
    let (etcd, direct) = two_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().buffer(5).await.unwrap();
    overfill(&cluster, &direct, "k/changed").await;
    let oldest = write_and_compact(&direct).await;
    let mut seen = watch.revision();
    let why = loop {
        match item(&mut watch).await {
            WatchEvent::Events(events) => {
                assert_eq!(events.revision(), seen + 1);
                seen += 1;
            }
            WatchEvent::Ended(why) => break why,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(why, WatchEnd::Compacted { revision } if revision == oldest));
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_compaction_that_the_watch_is_ahead_of_costs_nothing() {
    let cluster = Cluster::start(3).await;
    let (etcd, direct) = two_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().await.unwrap();
    let seen = direct.put("k/seen", "1").await.unwrap().header.revision;
    assert_eq!(next(&mut watch).await.0, seen);
    cut_off(&cluster);
    direct.put("other", "1").await.unwrap();
    direct.compact(seen + 1).await.unwrap();
    let missed = direct.put("k/missed", "1").await.unwrap().header.revision;
    cluster.heal();
    assert_eq!(next(&mut watch).await, (missed, vec!["k/missed".into()]));
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_resync_tells_the_difference_and_goes_on() {
    let cluster = Cluster::start(3).await;
    let (etcd, direct) = two_clients(&cluster).await;
    let mut watch = etcd.watch("k/").prefix().resync().await.unwrap();
    direct.put("k/told", "1").await.unwrap();
    assert_eq!(next(&mut watch).await.1, ["k/told"]);
    cut_off(&cluster);
    let compacted = write_and_compact(&direct).await;
    cluster.heal();
    let WatchEvent::Resynced(resynced) = item(&mut watch).await else {
        panic!("a resync comes first");
    };
    assert!(resynced.revision >= compacted);
    let keys = |kvs: &[actix_etcd::kv::KeyValue]| -> Vec<_> {
        kvs.iter().map(|kv| kv.key.clone()).collect()
    };
    assert_eq!(keys(&resynced.created), ["k/created"]);
    assert_eq!(keys(&resynced.changed), ["k/changed"]);
    assert_eq!(resynced.deleted, ["k/deleted"]);
    let after = etcd.put("k/same", "2").await.unwrap().header.revision;
    assert_eq!(next(&mut watch).await, (after, vec!["k/same".into()]));
    etcd.shutdown().await;
}
