//! Typed values on a scripted server, for orders of responses that etcd cannot produce on demand.

use std::{sync::Arc, time::Duration};

use actix_etcd::{
    layers::{codec::Utf8, typed::TypedWatchEvent},
    proto::{KeyValue, RangeResponse, WatchResponse},
};
use testbed::Reply;
use tokio::{sync::Semaphore, time::timeout};

use crate::support::{
    scripted_put::RANGE,
    wait::TEST_TIMEOUT,
    watch_server::{
        connect, connect_with_timeout, created, event, events, header, next_create,
        start_watch_server,
    },
};

/// Replies to a read with the key `n/a`, written at revision 10.
fn reply_at(revision: i64) -> Reply {
    Reply::message(&RangeResponse {
        header: Some(header(revision)),
        kvs: vec![KeyValue {
            key: "n/a".into(),
            value: "1".into(),
            create_revision: 10,
            mod_revision: 10,
            version: 1,
            ..KeyValue::default()
        }],
        count: 1,
        ..RangeResponse::default()
    })
}

/// The list is at revision 30. The read after a compaction is at revision 25, and changes until 30 follow.
#[tokio::test]
async fn resync_before_the_list_is_skipped() {
    let compact = Arc::new(Semaphore::new(0));
    let compacting = compact.clone();
    let (server, _) = start_watch_server(move |_, mut tx, mut rx, starts| {
        let compacting = compacting.clone();
        async move {
            loop {
                let create = next_create(&mut rx).await;
                let id = create.watch_id;
                starts.lock().unwrap().push(create.start_revision);
                tx.send(&created(id, 10)).await.unwrap();
                if create.start_revision <= 20 {
                    compacting.acquire().await.unwrap().forget();
                    let compacted = WatchResponse {
                        header: Some(header(25)),
                        watch_id: id,
                        canceled: true,
                        compact_revision: 20,
                        ..WatchResponse::default()
                    };
                    tx.send(&compacted).await.unwrap();
                    continue;
                }
                for revision in [28, 31] {
                    let events = events(id, false, vec![event("n/b", revision)]);
                    tx.send(&events).await.unwrap();
                }
            }
        }
    })
    .await;
    server.on(RANGE, |call| {
        reply_at(match call.nth {
            0 => 10,
            1 => 30,
            _ => 25,
        })
    });
    let etcd = connect(&server).await;
    let numbers = etcd.typed::<u32, Utf8>("n/");
    let mut watch = numbers.list_and_watch().resync().await.unwrap();
    compact.add_permits(1);
    let mut revisions = Vec::new();
    while revisions.last() != Some(&31) {
        let next = timeout(TEST_TIMEOUT, watch.next()).await;
        match next.expect("no item in time").unwrap() {
            TypedWatchEvent::Listed(listing) => revisions.push(listing.revision),
            TypedWatchEvent::Changed(changes) => revisions.push(changes.revision),
            TypedWatchEvent::Resynced(resynced) => revisions.push(resynced.revision),
            TypedWatchEvent::Ended(end) => panic!("{end}"),
            _ => {}
        }
    }
    assert_eq!(revisions, [30, 31]);
    assert_eq!(server.count(RANGE), 3);
}

#[tokio::test]
async fn wait_covers_the_list() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let create = next_create(&mut rx).await;
        tx.send(&created(create.watch_id, 10)).await.unwrap();
        tx.closed().await;
    })
    .await;
    server.on(RANGE, |call| match call.nth {
        0 => Reply::hang(),
        _ => reply_at(30),
    });
    let etcd = connect_with_timeout(&server, Duration::from_millis(500)).await;
    let numbers = etcd.typed::<u32, Utf8>("n/");
    let watch = timeout(TEST_TIMEOUT, numbers.list_and_watch().wait().into_future()).await;
    assert_eq!(watch.expect("the list is stuck").unwrap().revision(), 30);
}
