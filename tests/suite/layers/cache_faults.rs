//! Caches through compactions and restores while they are cut off, and starts without etcd.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use actix_etcd::{
    Client, ErrorKind,
    layers::cache::{CacheChange, CacheEntry, CacheEvent, CacheLag, CacheSnapshot},
};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    cluster_backup::{back_up, restore},
    snapshot_files::{FilePath, unconnected_client},
    wait::{TEST_TIMEOUT, until},
    write_load::put_until_ok,
};

fn pairs(keys: &CacheSnapshot) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    keys.iter()
        .map(|entry| (text(entry.key()), text(entry.value())))
        .collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

#[tokio::test]
async fn compaction_while_cut_off_is_one_net_change() {
    let cluster = Cluster::start(3).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    for key in ["k/changed", "k/deleted", "k/same"] {
        direct.put(key, "1").await.unwrap();
    }
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let cache = etcd.cache("k/").await.unwrap();
    let mut changes = cache.changes();
    for member in cluster.members() {
        member.client_link().set(Fault::Refuse);
    }
    direct.put("k/changed", "2").await.unwrap();
    direct.delete("k/deleted").await.unwrap();
    direct.put("k/created", "1").await.unwrap();
    direct.put("k/short-lived", "1").await.unwrap();
    let last = direct.delete("k/short-lived").await.unwrap();
    let last = last.header.revision;
    direct.compact(last).await.unwrap();
    until("the cache notices the outage", || {
        matches!(
            cache.freshness().behind,
            Some(CacheLag::Reconnecting { .. })
        )
    })
    .await;
    assert_eq!(
        pairs(&cache.snapshot()),
        owned(&[("k/changed", "1"), ("k/deleted", "1"), ("k/same", "1")]),
        "the last state is served"
    );
    cluster.heal();
    let Some(CacheEvent::Updated(update)) = timeout(TEST_TIMEOUT, changes.next()).await.unwrap()
    else {
        panic!("the cache ended");
    };
    let values = |change: CacheChange| {
        let value = |entry: &CacheEntry| entry.value_str().unwrap().to_owned();
        let key = String::from_utf8_lossy(change.key()).into_owned();
        (
            key,
            change.previous().map(value),
            change.current().map(value),
        )
    };
    let some = |value: &str| Some(value.to_owned());
    assert_eq!(
        update.iter().map(values).collect::<Vec<_>>(),
        [
            ("k/changed".to_owned(), some("1"), some("2")),
            ("k/created".to_owned(), None, some("1")),
            ("k/deleted".to_owned(), some("1"), None),
        ]
    );
    assert!(update.revision() >= last);
    let after = direct.put("k/same", "2").await.unwrap().header.revision;
    let keys = timeout(TEST_TIMEOUT, cache.wait_for_revision(after)).await;
    assert_eq!(keys.unwrap().unwrap().get("k/same").unwrap().value(), b"2");
    etcd.shutdown().await;
}

#[tokio::test]
async fn cache_follows_cluster_restored_from_older_backup() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    for key in ["k/changed", "k/deleted"] {
        etcd.put(key, "backup").await.unwrap();
    }
    back_up(&cluster).await;
    let cache = etcd.cache("k/").await.unwrap();
    put_until_ok(&etcd, "k/changed", "later").await;
    etcd.delete("k/deleted").await.unwrap();
    for _ in 0..20 {
        put_until_ok(&etcd, "k/created", "later").await;
    }
    let seen = put_until_ok(&etcd, "k/created", "later").await;
    cache.wait_for_revision(seen).await.unwrap();
    restore(&cluster).await;
    // The new history passes the revisions of the old one only after this write.
    let written = put_until_ok(&etcd, "k/changed", "restored").await;
    assert!(written < seen, "the revision must be one of the past");
    let keys = loop {
        match cache.consistent_snapshot().await {
            Ok(keys) => break keys,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    };
    assert_eq!(
        pairs(&keys),
        owned(&[("k/changed", "restored"), ("k/deleted", "backup")])
    );
    assert!(keys.revision() < seen);
    let after = put_until_ok(&etcd, "k/after", "1").await;
    let keys = timeout(TEST_TIMEOUT, cache.wait_for_revision(after)).await;
    assert!(keys.unwrap().unwrap().contains_key("k/after"));
    etcd.shutdown().await;
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn cache_starts_from_its_file_without_etcd() {
    let file = FilePath::new();
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("k/a", "1").await.unwrap();
    let cache = etcd.cache("k/").snapshot_file(&file.0).await.unwrap();
    let last = etcd.put("k/b", "1").await.unwrap().header.revision;
    cache.wait_for_revision(last).await.unwrap();
    cache.clone().close().await;
    assert_eq!(mode(&file.0), 0o600);
    assert!(cache.file_error().is_none());
    assert_eq!(cache.len(), 2, "the last state is served");
    etcd.shutdown().await;
    cluster.member(0).kill();

    let etcd = unconnected_client(&cluster).await;
    let start = etcd.cache("k/").snapshot_file(&file.0);
    let cache = start.await.unwrap();
    assert_eq!(
        pairs(&cache.snapshot()),
        owned(&[("k/a", "1"), ("k/b", "1")])
    );
    assert_eq!(cache.revision(), last);
    let freshness = cache.freshness();
    assert!(
        matches!(freshness.behind, Some(CacheLag::FromFile { .. })),
        "{freshness:?}"
    );
    let error = cache.get_consistent("k/a").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let mut changes = cache.changes();
    cluster.start_all().await;
    put_until_ok(&etcd, "k/a", "2").await;
    timeout(TEST_TIMEOUT, cache.wait_synced())
        .await
        .unwrap()
        .unwrap();
    let Some(CacheEvent::Updated(update)) = timeout(TEST_TIMEOUT, changes.next()).await.unwrap()
    else {
        panic!("the cache ended");
    };
    let change = update.iter().next().unwrap();
    assert_eq!(change.previous().unwrap().value(), b"1");
    until("the cache is current", || !cache.freshness().is_behind()).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn broken_file_is_ignored_and_reported() {
    let file = FilePath::new();
    fs::write(&file.0, b"actix-etcd cache 1\nnonsense").unwrap();
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("k/a", "1").await.unwrap();
    let cache = etcd.cache("k/").snapshot_file(&file.0).await.unwrap();
    assert_eq!(cache.len(), 1);
    let error = cache.file_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::FileFailed);
    assert!(error.to_string().contains("broken"), "{error}");
    // The shutdown of the client writes the file.
    etcd.shutdown().await;
    until("the file is written", || cache.file_error().is_none()).await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let second = other.cache("k/").snapshot_file(&file.0).await.unwrap();
    assert!(second.file_error().is_none());
    // Of another prefix:
    let third = other.cache("other/").snapshot_file(&file.0).await.unwrap();
    let error = third.file_error().unwrap().to_string();
    assert!(error.contains("another cache"), "{error}");
    // Of another namespace:
    let tenant = other.namespace("tenant/").unwrap();
    let fourth = tenant.cache("k/").snapshot_file(&file.0).await.unwrap();
    let error = fourth.file_error().unwrap().to_string();
    assert!(error.contains("another cache"), "{error}");
    other.shutdown().await;
}

#[tokio::test]
async fn start_without_etcd_and_file_fails() {
    let file = FilePath::new();
    let cluster = Cluster::start(1).await;
    cluster.member(0).kill();
    let etcd = unconnected_client(&cluster).await;
    let error = etcd.cache("k/").snapshot_file(&file.0).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let waiting = tokio::spawn(etcd.cache("k/").wait().into_future());
    cluster.start_all().await;
    let cache = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert!(cache.unwrap().is_empty());
    etcd.shutdown().await;
}

#[tokio::test]
async fn file_is_written_after_changes() {
    let file = FilePath::new();
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let start = etcd.cache("k/").snapshot_file(&file.0);
    let cache = start
        .snapshot_interval(Duration::from_millis(1))
        .await
        .unwrap();
    let size = || fs::metadata(&file.0).map_or(0, |file| file.len());
    until("the first state is written", || size() > 0).await;
    let before = size();
    etcd.put("k/a", "1").await.unwrap();
    until("the change is written", || size() > before).await;
    drop(cache);
    etcd.shutdown().await;
}
