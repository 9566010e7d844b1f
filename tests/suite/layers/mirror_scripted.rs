//! Mirrors on scripted servers, for orders of responses that etcd cannot produce on demand.

use std::sync::Arc;

use actix_etcd::{
    ErrorKind,
    proto::{KeyValue, RangeResponse},
};
use testbed::{Reply, ScriptedServer};

use crate::support::{
    scripted_put::RANGE,
    watch_server::{connect, header},
};

const TXN: &str = "/etcdserverpb.KV/Txn";
const PERMISSION_DENIED: u32 = 7;

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
