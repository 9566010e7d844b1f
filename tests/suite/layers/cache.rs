//! Caches: reads, changes, bounds, types and messages.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    ErrorKind, Etcd,
    kv::{delete, put},
    layers::{
        cache::{
            Cache, CacheChange, CacheChanges, CacheEntry, CacheEvent, CacheLag, CacheSnapshot,
            CacheUpdate, cache,
        },
        codec::Utf8,
    },
};
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, until},
    watcher_metrics::wait_for_watchers,
};

fn pairs(entries: impl IntoIterator<Item = CacheEntry>) -> Vec<(String, String)> {
    let pair = |entry: CacheEntry| {
        (
            entry.key_str().unwrap().to_owned(),
            entry.value_str().unwrap().to_owned(),
        )
    };
    entries.into_iter().map(pair).collect()
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

async fn next_update(changes: &mut CacheChanges) -> CacheUpdate {
    match timeout(TEST_TIMEOUT, changes.next()).await.unwrap() {
        Some(CacheEvent::Updated(update)) => update,
        other => panic!("{other:?}"),
    }
}

/// Returns the kinds, keys and values of the changes of an update: `+k/a=1`, `~k/a=1>2`, `-k/a=2`.
fn printed(update: &CacheUpdate) -> Vec<String> {
    let print = |change| match &change {
        CacheChange::Created(entry) => {
            format!(
                "+{}={}",
                entry.key_str().unwrap(),
                entry.value_str().unwrap()
            )
        }
        CacheChange::Changed { previous, current } => format!(
            "~{}={}>{}",
            current.key_str().unwrap(),
            previous.value_str().unwrap(),
            current.value_str().unwrap()
        ),
        CacheChange::Deleted(entry) => {
            format!(
                "-{}={}",
                entry.key_str().unwrap(),
                entry.value_str().unwrap()
            )
        }
        other => panic!("{other:?}"),
    };
    update.iter().map(print).collect()
}

#[tokio::test]
async fn cache_has_all_keys_of_the_prefix_in_order() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for (key, value) in [("k/b", "2"), ("k/a", "1"), ("k/c", "3"), ("other", "4")] {
        etcd.put(key, value).await.unwrap();
    }
    let cache = etcd.cache("k/").await.unwrap();
    assert_eq!(cache.len(), 3);
    assert_eq!(
        pairs(&cache),
        [pair("k/a", "1"), pair("k/b", "2"), pair("k/c", "3")]
    );
    assert_eq!(pairs(cache.range("k/a".."k/c")).len(), 2);
    assert_eq!(pairs(cache.prefix("k/b")), [pair("k/b", "2")]);
    assert!(cache.get("other").is_none() && cache.get("k/").is_none());
    let entry = cache.get("k/a").unwrap();
    let kv = etcd.get("k/a").await.unwrap().kvs.remove(0);
    assert_eq!(entry.to_key_value(), kv);
    assert_eq!(cache.typed::<u32, Utf8>().get("k/c").unwrap(), Some(3));
    let all = etcd.cache("").await.unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(
        all.get_consistent("other").await.unwrap().unwrap().value(),
        b"4"
    );
    etcd.shutdown().await;
}

#[tokio::test]
async fn snapshot_stays_while_the_cache_changes() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("k/a", "1").await.unwrap();
    let cache = etcd.cache("k/").await.unwrap();
    let before = cache.snapshot();
    let ops = (put("k/b", "1"), put("k/c", "1"), delete("k/a"));
    let both = etcd.txn().then(ops).await.unwrap();
    let after = cache.wait_for_revision(both.header.revision).await.unwrap();
    assert_eq!(pairs(&before), [pair("k/a", "1")]);
    assert_eq!(pairs(&after), [pair("k/b", "1"), pair("k/c", "1")]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn changes_have_previous_values() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("k/a", "1").await.unwrap();
    let cache = etcd.cache("k/").await.unwrap();
    let mut changes = cache.changes();
    etcd.put("k/a", "2").await.unwrap();
    let update = next_update(&mut changes).await;
    assert_eq!(printed(&update), ["~k/a=1>2"]);
    etcd.put("k/b", "1").await.unwrap();
    assert_eq!(printed(&next_update(&mut changes).await), ["+k/b=1"]);
    etcd.delete("k/a").await.unwrap();
    assert_eq!(printed(&next_update(&mut changes).await), ["-k/a=2"]);
    // A slow reader receives the sum.
    for value in ["3", "4"] {
        etcd.put("k/a", value).await.unwrap();
    }
    let last = etcd.delete("k/b").await.unwrap().header.revision;
    cache.wait_for_revision(last).await.unwrap();
    let update = next_update(&mut changes).await;
    assert_eq!(printed(&update), ["+k/a=4", "-k/b=1"]);
    assert_eq!(update.revision(), last);
    etcd.shutdown().await;
    assert!(matches!(
        timeout(TEST_TIMEOUT, changes.next()).await.unwrap(),
        Some(CacheEvent::Ended(error)) if error.kind() == ErrorKind::Shutdown
    ));
    assert!(changes.next().await.is_none());
    assert_eq!(cache.len(), 1, "the last state is served");
    assert!(matches!(cache.freshness().behind, Some(CacheLag::Ended(_))));
}

#[tokio::test]
async fn consistent_read_has_every_acknowledged_write() {
    let (_cluster, etcd) = Cluster::start_with_client(3).await;
    let cache = etcd.cache("k/").await.unwrap();
    for number in 0..50 {
        let key = format!("k/{}", number % 5);
        let value = number.to_string();
        etcd.put(key.clone(), value.clone()).await.unwrap();
        // Writes of other keys move the revision, for which the cache receives no event.
        etcd.put("other", "1").await.unwrap();
        let reads = (0..4).map(|_| cache.get_consistent(&key));
        for read in reads {
            assert_eq!(read.await.unwrap().unwrap().value(), value.as_bytes());
        }
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn idle_cache_is_fresh() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let cache = etcd.cache("k/").await.unwrap();
    let other = etcd.put("other", "1").await.unwrap().header.revision;
    assert!(cache.wait_for_revision(other).await.unwrap().revision() >= other);
    until("the probes confirm the cache", || {
        let freshness = cache.freshness();
        !freshness.is_behind() && freshness.age < Duration::from_secs(1)
    })
    .await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn wait_until_returns_the_snapshot_that_fulfils_the_condition() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let cache = etcd.cache("k/").await.unwrap();
    let waiting = tokio::spawn({
        let cache = cache.clone();
        async move { cache.wait_until(|keys| keys.len() == 2).await }
    });
    for key in ["k/a", "k/b"] {
        etcd.put(key, "1").await.unwrap();
    }
    let found = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert_eq!(found.unwrap().len(), 2);
    etcd.shutdown().await;
    let ended = cache.wait_until(CacheSnapshot::is_empty).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Shutdown);
}

#[tokio::test]
async fn prefix_above_the_bound_is_refused_with_advice() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for number in 0..20 {
        etcd.put(format!("k/{number}"), "v".repeat(100))
            .await
            .unwrap();
    }
    let error = etcd.cache("k/").max_bytes(2000).wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CacheTooLarge);
    assert!(error.to_string().contains("raise `max_bytes`"), "{error}");
    etcd.shutdown().await;
}

#[tokio::test]
async fn cache_that_outgrows_its_bound_keeps_its_state_until_keys_fit() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("k/a", "1").await.unwrap();
    let cache = etcd.cache("k/").max_bytes(2000).await.unwrap();
    etcd.put("k/large", "v".repeat(2000)).await.unwrap();
    until("the cache reports its size", || {
        matches!(cache.freshness().behind, Some(CacheLag::TooLarge { .. }))
    })
    .await;
    assert_eq!(pairs(&cache), [pair("k/a", "1")]);
    etcd.put("k/b", "1").await.unwrap();
    etcd.delete("k/large").await.unwrap();
    let fits = cache.wait_until(|keys| keys.contains_key("k/b"));
    timeout(TEST_TIMEOUT, fits).await.unwrap().unwrap();
    until("the cache follows again", || !cache.freshness().is_behind()).await;
    assert_eq!(pairs(&cache), [pair("k/a", "1"), pair("k/b", "1")]);
    etcd.shutdown().await;
}

#[actix::test]
async fn actor_receives_content_and_changes() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    client.put("k/a", "1").await.unwrap();
    let etcd = Etcd::new(client.clone()).start();
    let (received, recipient) = record_messages::<CacheEvent>();
    let subscription = etcd.send(cache("k/").deliver_to(recipient)).await.unwrap();
    let count = || received.lock().unwrap().len();
    until("the content arrives", || count() == 1).await;
    client.put("k/b", "1").await.unwrap();
    until("the change arrives", || count() == 2).await;
    let open: Cache = etcd.send(cache("k/")).await.unwrap().unwrap();
    assert_eq!(open.len(), 2);
    client.shutdown().await;
    until("the end arrives", || count() == 3).await;
    let received = received.lock().unwrap();
    let [
        CacheEvent::Updated(first),
        CacheEvent::Updated(second),
        CacheEvent::Ended(_),
    ] = &received[..]
    else {
        panic!("{received:?}");
    };
    assert_eq!(printed(first), ["+k/a=1"]);
    assert_eq!(printed(second), ["+k/b=1"]);
    drop(subscription);
}

#[tokio::test]
async fn dropped_cache_ends_its_watch() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let cache = etcd.cache("k/").await.unwrap();
    wait_for_watchers(&cluster, 1.0).await;
    let clone = cache.clone();
    drop(cache);
    etcd.put("k/a", "1").await.unwrap();
    clone.wait_until(|keys| keys.len() == 1).await.unwrap();
    drop(clone);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn cache_stays_current_while_the_application_blocks_its_thread() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let cache = etcd.cache("k/").await.unwrap();
    let endpoints = cluster.endpoints();
    let writer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let etcd = connect(endpoints).await;
            etcd.put("k/a", "1").await.unwrap();
        });
    });
    // Blocks the only thread of the test's runtime.
    writer.join().unwrap();
    let start = std::time::Instant::now();
    while cache.is_empty() && start.elapsed() < TEST_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(cache.len(), 1);
    etcd.shutdown().await;
}
