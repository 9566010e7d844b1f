//! Transactions that the server refuses, as a whole or because of one write.

use actix_etcd::{Client, ErrorKind, Outcome, layers::bulk::BulkWrite};
use testbed::Cluster;

use crate::support::connected_cluster::{StartWithClient, connect};

async fn count(etcd: &Client, prefix: &str) -> i64 {
    etcd.get(prefix).prefix().count_only().await.unwrap().count
}

/// Imports 1,000 keys with values of this size into a cluster with this flag. Returns the number of writes of the
/// largest transaction.
async fn import_with_flag(flag: &str, value: usize) -> u64 {
    let cluster = Cluster::builder().arg(flag).start().await;
    let etcd = connect(cluster.endpoints()).await;
    let (sender, sizes) = std::sync::mpsc::channel();
    let mut bulk = etcd
        .bulk()
        .on_part_result(move |part| {
            let size = part.positions.end - part.positions.start;
            sender.send(size).unwrap();
        })
        .start();
    for n in 0..1_000 {
        bulk.put(format!("k/{n:04}"), vec![b'v'; value])
            .await
            .unwrap();
    }
    let report = bulk.finish().await.unwrap();
    assert_eq!((report.written, report.resume_point), (1_000, 1_000));
    assert_eq!(count(&etcd, "k/").await, 1_000);
    let sizes: Vec<u64> = sizes.iter().collect();
    let largest = sizes.iter().copied().max().unwrap();
    // The limit is found once and remembered.
    let small = sizes.iter().filter(|size| **size < largest / 2);
    assert!(small.count() <= 20, "{flag}: {sizes:?}");
    largest
}

#[tokio::test]
async fn operation_limit_of_server_is_found() {
    assert_eq!(import_with_flag("--max-txn-ops=20", 10).await, 16);
}

#[tokio::test]
async fn byte_limit_of_server_is_found() {
    let largest = import_with_flag("--max-request-bytes=8192", 500).await;
    assert!((4..=16).contains(&largest), "{largest} writes of 500 bytes");
}

/// Imports 299 keys and one write that the server rejects, and checks that only this one fails.
async fn check_single_failure(rejected: BulkWrite, kind: ErrorKind) {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut bulk = etcd.bulk().start();
    for n in 0..300 {
        if n == 200 {
            bulk.send(rejected.clone()).await.unwrap();
        } else {
            bulk.put(format!("k/{n:03}"), "v").await.unwrap();
        }
    }
    let failed = bulk.finish().await.unwrap_err();
    let report = failed.report();
    assert_eq!((report.written, report.failed, report.unsent), (299, 1, 0));
    assert_eq!(report.resume_point, 200);
    assert_eq!(report.resume_key.as_deref(), Some(&b"k/199"[..]));
    let [failure] = &report.failures[..] else {
        panic!("{:?}", report.failures);
    };
    assert_eq!(failure.positions, 200..201);
    assert_eq!(failure.first_key, rejected.key());
    let error = failure.result.as_ref().unwrap_err();
    assert_eq!(error.kind(), kind, "{failed}");
    assert_ne!(error.outcome(), Outcome::Unknown);
    assert_eq!(count(&etcd, "k/").await, 299);
}

#[tokio::test]
async fn oversize_value_fails_alone() {
    let oversize = BulkWrite::put("k/large", vec![0; 3 << 20]);
    check_single_failure(oversize, ErrorKind::RequestTooLarge).await;
}

#[tokio::test]
async fn write_with_missing_lease_fails_alone() {
    let unleased = BulkWrite::put("k/leased", "v").lease(4711);
    check_single_failure(unleased, ErrorKind::LeaseNotFound).await;
}

#[tokio::test]
async fn empty_key_fails_alone() {
    check_single_failure(BulkWrite::put("", "v"), ErrorKind::EmptyKey).await;
}

#[tokio::test]
async fn too_many_failures_stop_the_bulk() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut bulk = etcd.bulk().max_ops(4).max_failures(6).start();
    let mut accepted = 0;
    let error = loop {
        let write = BulkWrite::put(format!("k/{accepted:05}"), "v").lease(4711);
        match bulk.send(write).await {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 10_000, "the bulk does not stop");
    };
    assert_eq!(error.kind(), ErrorKind::LeaseNotFound);
    let failed = bulk.finish().await.unwrap_err();
    let report = failed.report();
    assert_eq!((report.written, report.resume_point), (0, 0));
    assert_eq!(report.failed + report.unsent, accepted);
    assert!(report.failures.len() >= 6);
}
