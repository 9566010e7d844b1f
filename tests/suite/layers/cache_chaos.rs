//! Caches while members, links and the leader fail.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use actix_etcd::{
    Client, ErrorKind,
    kv::KeyValue,
    layers::cache::{Cache, CacheChanges, CacheEntry, CacheEvent, CacheSnapshot},
};
use testbed::{Chaos, ChaosKind, Cluster};
use tokio::time::timeout;

use crate::support::{
    wait::TEST_TIMEOUT,
    watch_items::WATCH_TIMEOUT,
    write_load::{WriteLoad, put_until_ok},
};

fn key_values(keys: &CacheSnapshot) -> Vec<KeyValue> {
    keys.iter().map(|entry| entry.to_key_value()).collect()
}

/// Waits until the cache has a revision, and compares it with a read at the revision that it then has.
async fn check_equals_read(etcd: &Client, cache: &Cache, revision: i64) {
    loop {
        let covered = cache.wait_for_revision(revision);
        let Ok(keys) = timeout(TEST_TIMEOUT, covered).await else {
            panic!("revision {revision} is missing: {:?}", cache.freshness());
        };
        let keys = keys.unwrap();
        let read = etcd.get("k/").prefix().revision(keys.revision());
        match read.timeout(WATCH_TIMEOUT).await {
            Ok(read) => {
                assert_eq!(key_values(&keys), read.kvs, "at {}", keys.revision());
                return;
            }
            // The revision was compacted meanwhile; a later one is compared.
            Err(error) => assert!(
                error.is_transient() || error.kind() == ErrorKind::Compacted,
                "{error}"
            ),
        }
    }
}

/// Applies all changes to a copy until the cache ends. Returns the copy.
async fn follow(mut changes: CacheChanges) -> BTreeMap<Vec<u8>, CacheEntry> {
    let copy_of = |keys: &CacheSnapshot| -> BTreeMap<Vec<u8>, CacheEntry> {
        keys.iter()
            .map(|entry| (entry.key().to_vec(), entry))
            .collect()
    };
    let mut copy = copy_of(changes.snapshot());
    let mut revision = changes.snapshot().revision();
    while let Some(CacheEvent::Updated(update)) = changes.next().await {
        assert!(update.revision() > revision, "the cluster was not restored");
        revision = update.revision();
        for change in &update {
            let previous = match change.current() {
                Some(entry) => copy.insert(change.key().to_vec(), entry.clone()),
                None => copy.remove(change.key()),
            };
            assert_eq!(previous.as_ref(), change.previous());
        }
        assert_eq!(copy, copy_of(update.after()));
    }
    copy
}

/// Writes a key and reads it linearizably until stopped. Returns the number of reads.
async fn read_own_writes(etcd: Client, cache: Cache, stop: Arc<AtomicBool>) -> u64 {
    let (mut number, mut reads) = (0_u64, 0);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let Ok(put) = etcd.put("k/own", number.to_string()).await else {
            continue;
        };
        if let Ok(entry) = cache.get_consistent("k/own").await {
            // A write of unknown outcome may be applied later, but none can be applied before this one is read.
            let entry = entry.expect("the key exists");
            assert!(entry.mod_revision() >= put.header.revision, "{entry:?}");
            reads += 1;
        }
    }
    reads
}

/// Compacts everything up to the latest write until stopped.
async fn compact(etcd: Client, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(put) = etcd.put("compaction", "1").await {
            let _ = etcd.compact(put.header.revision).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_equals_fresh_read_after_every_fault() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let cache = etcd.cache("k/").await.unwrap();
    let stop = Arc::<AtomicBool>::default();
    let following = tokio::spawn(follow(cache.changes()));
    let reading = tokio::spawn(read_own_writes(etcd.clone(), cache.clone(), stop.clone()));
    let compacting = tokio::spawn(compact(etcd.clone(), stop.clone()));
    let all = Chaos::from_env("cache");
    let kinds = u32::try_from(ChaosKind::ALL.len()).unwrap();
    for kind in ChaosKind::ALL {
        let load = WriteLoad::start(&etcd);
        Chaos::new(
            &format!("cache {kind:?}"),
            all.seed(),
            all.duration() / (2 * kinds),
        )
        .run(&cluster, &[kind])
        .await;
        let last = load.stop(&etcd).await;
        check_equals_read(&etcd, &cache, last).await;
    }
    let load = WriteLoad::start(&etcd);
    let mixed = Chaos::new("cache", all.seed(), all.duration() / 2);
    let faults = mixed.run(&cluster, &ChaosKind::ALL).await;
    stop.store(true, Ordering::Relaxed);
    compacting.await.unwrap();
    let reads = reading.await.unwrap();
    load.stop(&etcd).await;
    let last = put_until_ok(&etcd, "k/end", "1").await;
    check_equals_read(&etcd, &cache, last).await;
    println!("{} mixed faults, {reads} consistent reads", faults.len());
    assert!(reads > 10, "consistent reads failed");
    let end = cache.snapshot();
    etcd.shutdown().await;
    let copy = following.await.unwrap();
    assert!(copy.into_values().eq(end.iter()));
}
