//! Mirrors on scripted servers, for orders of responses that etcd cannot produce on demand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    ErrorKind,
    layers::mirror::ExistingKeys,
    proto::{KeyValue, RangeRequest, RangeResponse},
};
use prost::Message;
use testbed::{Cluster, Reply, ScriptedServer};
use tokio::time::timeout;

use crate::support::{
    connected_cluster::StartWithClient,
    mirrors::failure,
    scripted_put::RANGE,
    wait::{TEST_TIMEOUT, until},
    watch_server::{
        connect, connect_with_timeout, created, header, next_create, start_watch_server,
    },
};

const TXN: &str = "/etcdserverpb.KV/Txn";
const PERMISSION_DENIED: u32 = 7;
const OUT_OF_RANGE: u32 = 11;

/// Replies to a read with no keys.
fn reply_at(revision: i64) -> Reply {
    Reply::message(&RangeResponse {
        header: Some(header(revision)),
        ..RangeResponse::default()
    })
}

/// Another mirror moves the checkpoint beyond the revision that the source had just before.
#[tokio::test]
async fn source_is_read_after_its_checkpoint() {
    let source = ScriptedServer::start().await;
    let destination = Arc::new(ScriptedServer::start().await);
    let reads = destination.clone();
    source.on(RANGE, move |_| {
        reply_at(if reads.count(RANGE) == 0 { 10 } else { 20 })
    });
    destination.on(RANGE, |_| {
        let checkpoint = r#"{"format":1,"writer":"a","source_cluster":"1","source_prefix":"app/",
            "destination_prefix":"copy/","revision":15}"#;
        Reply::message(&RangeResponse {
            header: Some(header(100)),
            kvs: vec![KeyValue {
                key: "actix-etcd/mirrors/copy/".into(),
                value: checkpoint.into(),
                mod_revision: 90,
                ..KeyValue::default()
            }],
            ..RangeResponse::default()
        })
    });
    destination.on(TXN, |_| {
        Reply::status(PERMISSION_DENIED, "etcdserver: permission denied")
    });
    let (from, to) = (connect(&source).await, connect(&destination).await);
    let refused = from.mirror("app/").to(&to, "copy/").start().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

/// The source is restored from a backup between its reads and the reply of its watch.
#[tokio::test]
async fn source_is_checked_after_its_watch_opened() {
    let revision = Arc::new(AtomicI64::new(20));
    let restored = revision.clone();
    let (server, _) = start_watch_server(move |_, mut tx, mut rx, _| {
        let restored = restored.clone();
        async move {
            let create = next_create(&mut rx).await;
            restored.store(5, Ordering::SeqCst);
            tx.send(&created(create.watch_id, 30)).await.unwrap();
            tx.closed().await;
        }
    })
    .await;
    server.on(RANGE, move |_| reply_at(revision.load(Ordering::SeqCst)));
    let (_cluster, destination) = Cluster::start_with_client(1).await;
    let source = connect(&server).await;
    let mirror = source.mirror("app/").to(&destination, "copy/");
    let mirror = mirror.start().await.unwrap();
    assert_eq!(failure(&mirror).await.kind(), ErrorKind::RevisionRegressed);
}

/// The source is restored from a backup between the choice of the revision and the read of the keys.
#[tokio::test]
async fn source_is_checked_after_its_keys_were_read() {
    let replies: [fn() -> Reply; 2] = [
        || reply_at(5),
        || {
            Reply::status(
                OUT_OF_RANGE,
                "etcdserver: mvcc: required revision is a future revision",
            )
        },
    ];
    let (_cluster, destination) = Cluster::start_with_client(1).await;
    destination.put("copy/k", "v").await.unwrap();
    for reply in replies {
        let revision = AtomicI64::new(20);
        let server = ScriptedServer::start().await;
        server.on(RANGE, move |call| {
            let request = RangeRequest::decode(call.body).unwrap();
            if request.count_only {
                return reply_at(revision.load(Ordering::SeqCst));
            }
            revision.store(5, Ordering::SeqCst);
            reply()
        });
        let source = connect(&server).await;
        let mirror = source.mirror("app/").to(&destination, "copy/");
        let mirror = mirror.existing_keys(ExistingKeys::Delete).start_over();
        let mirror = mirror.start().await.unwrap();
        assert_eq!(failure(&mirror).await.kind(), ErrorKind::RevisionRegressed);
        assert_eq!(destination.get("copy/k").await.unwrap().count, 1);
    }
}

/// The source does not respond to the read of its keys, and the request has a long timeout.
#[tokio::test]
async fn stop_interrupts_a_read_of_the_base() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        if request.count_only {
            reply_at(20)
        } else {
            Reply::hang()
        }
    });
    let (_cluster, destination) = Cluster::start_with_client(1).await;
    let source = connect_with_timeout(&server, Duration::from_secs(3600)).await;
    let mirror = source.mirror("app/").to(&destination, "copy/");
    let mirror = mirror.start().await.unwrap();
    let reads = || {
        let calls = server.calls(RANGE).into_iter();
        calls.filter(|call| !RangeRequest::decode(call.body.clone()).unwrap().count_only)
    };
    until("the keys are read", || reads().count() > 0).await;
    let stopped = timeout(TEST_TIMEOUT, mirror.stop()).await;
    stopped.expect("the mirror did not stop").unwrap();
}
