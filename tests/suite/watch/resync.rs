//! Watches that read their range: when they are opened, and when history is gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, WatchItem,
    proto::{KeyValue, RangeRequest, RangeResponse},
};
use prost::Message;
use testbed::{Cluster, Reply};

use crate::{
    support::watch_server::{create, created, event, events, header, server},
    watch::operations::{item, next, overfill},
};

const RANGE: &str = "/etcdserverpb.KV/Range";

/// One key of a range that has more, or its last.
fn page(revision: i64, key: &str, more: bool) -> RangeResponse {
    RangeResponse {
        header: Some(header(revision)),
        kvs: vec![KeyValue {
            key: key.to_owned().into(),
            create_revision: 2,
            mod_revision: 2,
            ..KeyValue::default()
        }],
        more,
        count: 3,
    }
}

#[tokio::test]
async fn a_compaction_while_the_keys_are_read_has_them_read_again() {
    let (server, starts) = server(|_, mut tx, mut rx, starts| async move {
        let create = create(&mut rx).await;
        starts.lock().unwrap().push(create.start_revision);
        tx.send(&created(create.watch_id, 20)).await.unwrap();
        tx.closed().await;
    })
    .await;
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    server.on(RANGE, move |call| {
        let asked = RangeRequest::decode(call.body).unwrap();
        let read = match asked.revision {
            0 => counted.fetch_add(1, Ordering::SeqCst),
            _ => counted.load(Ordering::SeqCst) - 1,
        };
        match (asked.revision, read) {
            (0, 0) => Reply::message(&page(10, "k/1", true)),
            (_, 0) => Reply::status(11, "etcdserver: mvcc: required revision has been compacted"),
            (0, _) => Reply::message(&page(20, "k/1", true)),
            _ => Reply::message(&page(20, "k/2", false)),
        }
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let _watch = etcd.watch("k/").prefix().resync().await.unwrap();
    assert_eq!(reads.load(Ordering::SeqCst), 2);
    assert_eq!(*starts.lock().unwrap(), [21]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn keys_that_take_long_to_read_leave_the_create_its_time() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        let create = create(&mut rx).await;
        let id = create.watch_id;
        tx.send(&created(id, 20)).await.unwrap();
        let first = event("k/1", create.start_revision);
        tx.send(&events(id, false, vec![first])).await.unwrap();
        tx.closed().await;
    })
    .await;
    // All pages together take longer than one request may.
    server.on(RANGE, |call| {
        let asked = RangeRequest::decode(call.body).unwrap();
        let before = asked.key.iter().find(|byte| byte.is_ascii_digit());
        let nth = before.map_or(1, |nth| nth - b'0' + 1);
        let answer = page(20, &format!("k/{nth}"), nth < 7);
        Reply::message(&answer).after(Duration::from_millis(800))
    });
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_secs(5))
        .connect()
        .await
        .unwrap();
    let mut watch = etcd.watch("k/").prefix().resync().await.unwrap();
    assert_eq!(next(&mut watch).await.0, 21);
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_compaction_while_the_watch_lags_is_made_up_for_by_a_resync() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let open = etcd.watch("k/").prefix().buffer(5).notices().resync();
    let mut watch = open.await.unwrap();
    overfill(&cluster, &etcd, "k/changed").await;
    etcd.put("k/created", "1").await.unwrap();
    let last = etcd.delete("k/changed").await.unwrap().header.revision;
    etcd.compact(last).await.unwrap();
    let (mut seen, mut lagged) = (watch.revision(), false);
    let resynced = loop {
        match item(&mut watch).await {
            WatchItem::Events(events) => {
                assert_eq!(events.revision(), seen + 1);
                seen += 1;
            }
            WatchItem::Lagging => lagged = true,
            // The server creates the watch before it sees that its history is gone.
            WatchItem::Resumed => {}
            WatchItem::Resynced(resynced) => break resynced,
            other => panic!("{other:?}"),
        }
    };
    assert!(lagged && seen < last - 2, "it did not lag");
    assert_eq!(resynced.revision, last);
    let created: Vec<_> = resynced.created.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(created, ["k/created"]);
    assert_eq!(resynced.changed, []);
    assert_eq!(resynced.deleted, ["k/changed"]);
    let after = etcd.put("k/later", "1").await.unwrap().header.revision;
    assert_eq!(next(&mut watch).await, (after, vec!["k/later".into()]));
    etcd.shutdown().await;
}
