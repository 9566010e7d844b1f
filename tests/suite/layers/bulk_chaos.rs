//! Bulk writes while members, links and the leader fail at random.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use actix_etcd::{Client, layers::bulk::OnUnknown};
use testbed::{Chaos, ChaosKind, Cluster};

use crate::support::connected_cluster::connect;

/// Few enough that each key is written many times.
const KEYS: u64 = 500;

/// Writes keys in turn until told to stop. Returns the last value of each key, and checks that all were written.
async fn write_until(etcd: Client, reaction: OnUnknown, stop: Arc<AtomicBool>) -> (String, u64) {
    let prefix = format!("{reaction:?}");
    let mut bulk = etcd.bulk().max_ops(16).on_unknown(reaction).start();
    let mut last = HashMap::new();
    let mut n = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{prefix}/{:03}", n * 7 % KEYS);
        last.insert(key.clone(), n.to_string());
        bulk.put(key, n.to_string()).await.unwrap();
        n += 1;
    }
    let report = bulk.finish().await.unwrap();
    assert_eq!((report.written, report.resume_point), (n, n));
    let found = etcd.get(format!("{prefix}/")).prefix().await.unwrap();
    assert_eq!(found.kvs.len(), last.len());
    for kv in found.kvs {
        let key = String::from_utf8(kv.key.to_vec()).unwrap();
        assert_eq!(kv.value, last[&key], "{key}");
    }
    (prefix, n)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_keys_have_last_value_under_random_faults() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers = [OnUnknown::Repeat, OnUnknown::ReadBack]
        .map(|reaction| tokio::spawn(write_until(etcd.clone(), reaction, stop.clone())));
    let faults = Chaos::from_env("bulk").run(&cluster, &ChaosKind::ALL).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let (prefix, writes) = writer.await.unwrap();
        println!("{prefix}: {writes} writes, {} faults", faults.len());
        assert!(writes > KEYS, "the writer was stuck");
    }
}
