//! Bulk writes on a healthy cluster: content, order, progress, backpressure and cancellation.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_etcd::{
    Client,
    layers::bulk::{Bulk, BulkWrite},
};
use testbed::{Change, Cluster, Fault};
use tokio::time::timeout;

use crate::support::connected_cluster::{StartWithClient, cluster_key};

async fn values(etcd: &Client, prefix: &str) -> Vec<(String, String)> {
    let found = etcd.get(prefix).prefix().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let kvs = found.kvs.iter();
    kvs.map(|kv| (text(&kv.key), text(&kv.value))).collect()
}

#[tokio::test]
async fn bulk_writes_and_deletes_every_key() {
    let (_cluster, etcd) = Cluster::start_with_client(3).await;
    etcd.put("bulk/old", "v").await.unwrap();
    let positions = Arc::new(Mutex::new(Vec::new()));
    let seen = positions.clone();
    let mut bulk = etcd
        .bulk()
        .on_part_result(move |outcome| {
            assert!(outcome.result.is_ok(), "{outcome:?}");
            seen.lock().unwrap().push(outcome.positions.clone());
        })
        .start();
    let mut updates = bulk.progress_updates();
    for n in 0..3_000 {
        let (key, value) = (format!("bulk/{n:05}"), format!("value {n}"));
        bulk.put(key, value).await.unwrap();
    }
    bulk.delete("bulk/old").await.unwrap();
    bulk.delete("bulk/never").await.unwrap();
    let report = bulk.finish().await.unwrap();

    assert_eq!(
        (report.written, report.failed, report.unsent),
        (3_002, 0, 0)
    );
    assert_eq!(report.resume_point, 3_002);
    assert_eq!(report.resume_key.unwrap(), "bulk/never");
    let found = values(&etcd, "bulk/").await;
    let expected = (0..3_000).map(|n| (format!("bulk/{n:05}"), format!("value {n}")));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let newest = etcd.get("bulk/").prefix().await.unwrap().header.revision;
    assert_eq!(report.revision, newest);

    let mut positions = std::mem::take(&mut *positions.lock().unwrap());
    positions.sort_by_key(|range| range.start);
    let mut next = 0;
    for range in positions {
        assert_eq!(range.start, next, "every write has one outcome");
        next = range.end;
    }
    assert_eq!(next, 3_002);
    let mut last = None;
    while let Some(progress) = updates.next().await {
        last = Some(progress);
    }
    let last = last.unwrap();
    assert_eq!((last.accepted, last.written), (3_002, 3_002));
    assert!(last.keys_per_sec() > 0.0);
}

#[tokio::test]
async fn writes_of_one_key_keep_their_order() {
    const KEYS: usize = 40;
    let (cluster, etcd) = Cluster::start_with_client(3).await;
    let mut bulk = etcd.bulk().max_ops(8).start();
    for n in 0..2_000_usize {
        // Each block of keys has another order, so that chunks overlap in different keys.
        let key = n * (1 + n / KEYS % 3 * 2) % KEYS;
        bulk.put(format!("order/{key:02}"), n.to_string())
            .await
            .unwrap();
    }
    bulk.finish().await.unwrap();
    for key in 0..KEYS {
        let name = format!("order/{key:02}");
        let written: Vec<String> = (0..2_000_usize)
            .filter(|n| n * (1 + n / KEYS % 3 * 2) % KEYS == key)
            .map(|n| n.to_string())
            .collect();
        let value = |change: Change| String::from_utf8(change.value.unwrap()).unwrap();
        let history = cluster.history(cluster_key(&name)).await;
        let mut history: Vec<String> = history.into_iter().map(value).collect();
        // A transaction whose response was lost is written twice.
        history.dedup();
        assert_eq!(history, written, "{name}");
    }
}

#[tokio::test]
async fn bulk_accepts_a_stream_of_writes() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(Duration::from_secs(60)).await.unwrap();
    let mut bulk = etcd.bulk().start();
    let pairs = (0..300).map(|n| (format!("s/{n:03}"), n.to_string()));
    bulk.send_all(tokio_stream::iter(pairs)).await.unwrap();
    bulk.send(BulkWrite::put("s/leased", "v").lease(lease.id()))
        .await
        .unwrap();
    bulk.flush().await.unwrap();
    assert_eq!(bulk.progress().written, 301);
    let leased = etcd.get("s/leased").await.unwrap();
    assert_eq!(leased.first().unwrap().lease, lease.id());
    // A flushed bulk accepts further writes.
    bulk.send(BulkWrite::delete("s/000")).await.unwrap();
    bulk.finish().await.unwrap();
    assert_eq!(values(&etcd, "s/").await.len(), 300);
}

/// Puts until a put waits. Returns the number of accepted writes.
async fn fill(bulk: &mut Bulk) -> u64 {
    for n in 0_u64.. {
        let put = bulk.put(format!("full/{n:05}"), "v");
        if timeout(Duration::from_millis(300), put).await.is_err() {
            return n;
        }
    }
    unreachable!()
}

#[tokio::test]
async fn full_bulk_waits_and_stops_when_dropped() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let mut bulk = etcd.bulk().max_ops(10).max_in_flight(2).start();
    bulk.put("known/revision", "v").await.unwrap();
    bulk.flush().await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let accepted = fill(&mut bulk).await;
    // Two transactions in flight, and one that waits.
    assert_eq!(accepted, 30);
    drop(bulk);
    cluster.member(0).client_link().heal();
    etcd.put("full/end", "v").await.unwrap();
    // The transactions in flight may have been applied. The other one was never sent.
    let found = values(&etcd, "full/").await;
    assert!(found.len() <= 21, "{} keys", found.len());
    assert!(!found.iter().any(|(key, _)| key == "full/00020"));
}

#[tokio::test]
async fn cancelled_send_all_loses_no_write() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let link = cluster.member(0).client_link().clone();
    let mut bulk = etcd.bulk().max_ops(10).max_in_flight(2).start();
    bulk.put("known/revision", "v").await.unwrap();
    bulk.flush().await.unwrap();
    let writes = (0..100).map(|n| BulkWrite::put(format!("all/{n:03}"), "v"));
    let mut writes = tokio_stream::iter(writes);
    link.set(Fault::Freeze);
    let cancelled = timeout(Duration::from_millis(300), bulk.send_all(&mut writes)).await;
    assert!(cancelled.is_err(), "the bulk is full");
    link.heal();
    bulk.send_all(writes).await.unwrap();
    let report = bulk.finish().await.unwrap();
    assert_eq!(report.written, 101);
    assert_eq!(values(&etcd, "all/").await.len(), 100);
}
