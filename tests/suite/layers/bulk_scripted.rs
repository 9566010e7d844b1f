//! Bulk writes against a scripted server, and with a faulty retry policy.

use std::sync::{Arc, Mutex};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    proto::{RangeResponse, ResponseHeader, TxnRequest, TxnResponse, compare::TargetUnion},
    retry::{FailedAttempt, RetryDecision, RetryPolicy},
};
use prost::Message;
use testbed::{Reply, ScriptedServer};

use crate::support::{scripted_put::RANGE, store_server::TXN};

fn header(revision: i64) -> ResponseHeader {
    ResponseHeader {
        revision,
        ..ResponseHeader::default()
    }
}

/// Returns the revision that a transaction compares with.
fn compared_revision(request: &TxnRequest) -> i64 {
    match request.compare[0].target_union {
        Some(TargetUnion::ModRevision(revision)) => revision,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn condition_follows_revision_of_restored_cluster() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |_| {
        Reply::message(&RangeResponse {
            header: Some(header(1_000)),
            ..RangeResponse::default()
        })
    });
    let compared = Arc::new(Mutex::new(Vec::new()));
    let seen = compared.clone();
    server.on(TXN, move |call| {
        let request = TxnRequest::decode(call.body).unwrap();
        seen.lock().unwrap().push(compared_revision(&request));
        // The cluster was restored from a backup after the first transaction.
        let revision = [1_001, 500, 501][call.nth];
        Reply::message(&TxnResponse {
            header: Some(header(revision)),
            succeeded: true,
            ..TxnResponse::default()
        })
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let mut bulk = etcd.bulk().start();
    for key in ["a", "b", "c"] {
        bulk.put(key, "v").await.unwrap();
        bulk.flush().await.unwrap();
    }
    bulk.finish().await.unwrap();
    assert_eq!(*compared.lock().unwrap(), [1_001, 1_002, 501]);
}

/// A retry policy with a bug.
#[derive(Debug)]
struct Panicking;

impl RetryPolicy for Panicking {
    fn decide(&self, _: &FailedAttempt) -> RetryDecision {
        panic!("a bug of the application");
    }
}

#[tokio::test]
async fn panicking_policy_leaves_writes_unknown() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |_| {
        Reply::message(&RangeResponse {
            header: Some(header(1)),
            ..RangeResponse::default()
        })
    });
    server.on(TXN, |_| Reply::status(14, "etcdserver: no leader"));
    let etcd = Client::builder([server.endpoint()])
        .retry(Panicking)
        .connect()
        .await
        .unwrap();
    let mut bulk = etcd.bulk().start();
    for key in ["a", "b"] {
        bulk.put(key, "v").await.unwrap();
    }
    let failed = bulk.finish().await.unwrap_err();
    let report = failed.report();
    assert_eq!((report.written, report.failed, report.unsent), (0, 2, 0));
    assert_eq!(report.failures[0].positions, 0..2);
    assert_eq!(failed.reason().kind(), ErrorKind::Internal);
    assert_eq!(failed.reason().outcome(), Outcome::Unknown);
}
