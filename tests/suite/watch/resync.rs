//! Watches with resync: they read their range when they are opened and after a compaction.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, WatchEvent,
    proto::{KeyValue, RangeRequest, RangeResponse},
};
use prost::Message;
use testbed::{Cluster, Reply};

use crate::support::{
    connected_cluster::connect,
    scripted_put::RANGE,
    watch_items::{next_change, next_item},
    watch_server::{
        connect_with_timeout, created, event, events, header, next_create, start_watch_server,
    },
    watcher_metrics::write_until_watch_pauses,
};

/// A page with one key. `more` is false for the last page.
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
async fn compaction_during_initial_read_restarts_it() {
    let (server, start_revisions) =
        start_watch_server(|_, mut tx, mut rx, start_revisions| async move {
            let create = next_create(&mut rx).await;
            start_revisions.lock().unwrap().push(create.start_revision);
            tx.send(&created(create.watch_id, 20)).await.unwrap();
            tx.closed().await;
        })
        .await;
    let reads = Arc::new(AtomicUsize::new(0));
    let read_count = reads.clone();
    server.on(RANGE, move |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        let read = match request.revision {
            0 => read_count.fetch_add(1, Ordering::SeqCst),
            _ => read_count.load(Ordering::SeqCst) - 1,
        };
        match (request.revision, read) {
            (0, 0) => Reply::message(&page(10, "k/1", true)),
            (_, 0) => Reply::status(11, "etcdserver: mvcc: required revision has been compacted"),
            (0, _) => Reply::message(&page(20, "k/1", true)),
            _ => Reply::message(&page(20, "k/2", false)),
        }
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let _watch = etcd.watch("k/").prefix().resync().await.unwrap();
    assert_eq!(reads.load(Ordering::SeqCst), 2);
    assert_eq!(*start_revisions.lock().unwrap(), [21]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn slow_initial_read_leaves_time_for_create() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let create = next_create(&mut rx).await;
        let id = create.watch_id;
        tx.send(&created(id, 20)).await.unwrap();
        let first = event("k/1", create.start_revision);
        tx.send(&events(id, false, vec![first])).await.unwrap();
        tx.closed().await;
    })
    .await;
    // Reading all pages takes longer than the request timeout.
    server.on(RANGE, |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        let previous = request.key.iter().find(|byte| byte.is_ascii_digit());
        let nth = previous.map_or(1, |digit| digit - b'0' + 1);
        let response = page(20, &format!("k/{nth}"), nth < 7);
        Reply::message(&response).after(Duration::from_millis(800))
    });
    let etcd = connect_with_timeout(&server, Duration::from_secs(5)).await;
    let mut watch = etcd.watch("k/").prefix().resync().await.unwrap();
    assert_eq!(next_change(&mut watch).await.0, 21);
    etcd.shutdown().await;
}

#[tokio::test]
async fn compaction_while_paused_triggers_resync() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k/").prefix().buffer(5).status_events().resync();
    let mut watch = open.await.unwrap();
    write_until_watch_pauses(&cluster, &etcd, "k/changed").await;
    etcd.put("k/created", "1").await.unwrap();
    let last = etcd.delete("k/changed").await.unwrap().header.revision;
    etcd.compact(last).await.unwrap();
    let (mut seen, mut paused) = (watch.revision(), false);
    let resynced = loop {
        match next_item(&mut watch).await {
            WatchEvent::Events(events) => {
                assert_eq!(events.revision(), seen + 1);
                seen += 1;
            }
            WatchEvent::Paused => paused = true,
            // The server confirms the watch before it reports the compaction.
            WatchEvent::Resumed => {}
            WatchEvent::Resynced(resynced) => break resynced,
            other => panic!("{other:?}"),
        }
    };
    assert!(paused && seen < last - 2, "the watch was not paused");
    assert_eq!(resynced.revision, last);
    let created: Vec<_> = resynced.created.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(created, ["k/created"]);
    assert_eq!(resynced.changed, []);
    assert_eq!(resynced.deleted, ["k/changed"]);
    let after = etcd.put("k/later", "1").await.unwrap().header.revision;
    assert_eq!(
        next_change(&mut watch).await,
        (after, vec!["k/later".into()])
    );
    etcd.shutdown().await;
}
