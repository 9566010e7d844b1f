//! Caches on a scripted server, for orders of responses that etcd cannot produce on demand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    ErrorKind,
    proto::{KeyValue, RangeRequest, RangeResponse},
};
use prost::Message;
use testbed::{Reply, ScriptedServer};
use tokio::{sync::Semaphore, time::timeout};

use crate::support::{
    scripted_put::RANGE,
    snapshot_files::FilePath,
    wait::{TEST_TIMEOUT, until},
    watch_server::{
        connect, connect_with_timeout, created, event, events, header, next_create, next_request,
        progress, start_watch_server,
    },
};

/// Replies to reads of ranges with one key at revision 10, and to reads of single keys with `revision` only.
fn serve_reads(server: &ScriptedServer, revision: Arc<AtomicI64>) {
    server.on(RANGE, move |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        let is_range = !request.range_end.is_empty();
        let kv = KeyValue {
            key: "k/1".into(),
            create_revision: 2,
            mod_revision: 2,
            ..KeyValue::default()
        };
        let current = revision.load(Ordering::SeqCst);
        Reply::message(&RangeResponse {
            header: Some(header(if is_range { 10 } else { current })),
            kvs: if is_range { vec![kv] } else { Vec::new() },
            ..RangeResponse::default()
        })
    });
}

#[tokio::test]
async fn consistent_read_waits_for_the_current_revision() {
    let send = Arc::new(Semaphore::new(0));
    let sending = send.clone();
    let (server, start_revisions) = start_watch_server(move |_, mut tx, mut rx, starts| {
        let sending = sending.clone();
        async move {
            let create = next_create(&mut rx).await;
            starts.lock().unwrap().push(create.start_revision);
            tx.send(&created(create.watch_id, 10)).await.unwrap();
            sending.acquire().await.unwrap().forget();
            let late = events(create.watch_id, false, vec![event("k/2", 20)]);
            tx.send(&late).await.unwrap();
            tx.closed().await;
        }
    })
    .await;
    serve_reads(&server, Arc::new(AtomicI64::new(20)));
    let etcd = connect(&server).await;
    let cache = etcd.cache("k/").await.unwrap();
    until("the watch starts", || {
        *start_revisions.lock().unwrap() == [11]
    })
    .await;
    let reads: Vec<_> = (0..8)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.get_consistent("k/2").await })
        })
        .collect();
    let before = server.count(RANGE);
    until("the revision is read", || server.count(RANGE) > before).await;
    assert!(reads.iter().all(|read| !read.is_finished()));
    assert!(cache.get("k/2").is_none(), "other reads are local");
    send.add_permits(1);
    for read in reads {
        assert_eq!(read.await.unwrap().unwrap().unwrap().mod_revision(), 20);
    }
    assert!(
        server.count(RANGE) - before <= 3,
        "concurrent reads share one request"
    );
    etcd.shutdown().await;
}

#[tokio::test]
async fn consistent_read_fails_at_its_deadline() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let create = next_create(&mut rx).await;
        tx.send(&created(create.watch_id, 10)).await.unwrap();
        tx.closed().await;
    })
    .await;
    let revision = Arc::new(AtomicI64::new(10));
    serve_reads(&server, revision.clone());
    let etcd = connect_with_timeout(&server, Duration::from_millis(300)).await;
    let cache = etcd.cache("k/").await.unwrap();
    assert!(cache.get_consistent("k/1").await.unwrap().is_some());
    revision.store(30, Ordering::SeqCst);
    let error = cache.get_consistent("k/1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("revision 30"), "{error}");
    // The cluster was restored from a backup, and the cache has keys of the replaced history.
    revision.store(5, Ordering::SeqCst);
    let error = cache.get_consistent("k/1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    etcd.shutdown().await;
}

#[tokio::test]
async fn revision_is_published_as_a_whole() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let create = next_create(&mut rx).await;
        let id = create.watch_id;
        tx.send(&created(id, 10)).await.unwrap();
        for revision in 11..200 {
            // Two halves of one revision, in two messages.
            let first = events(id, true, vec![event("k/a", revision)]);
            let second = events(id, false, vec![event("k/b", revision)]);
            tx.send(&first).await.unwrap();
            tokio::task::yield_now().await;
            tx.send(&second).await.unwrap();
        }
        tx.closed().await;
    })
    .await;
    serve_reads(&server, Arc::new(AtomicI64::new(10)));
    let etcd = connect(&server).await;
    let cache = etcd.cache("k/").await.unwrap();
    let both_equal = cache.wait_until(|keys| {
        let revision = |key| keys.get(key).map(|entry| entry.mod_revision());
        assert_eq!(revision("k/a"), revision("k/b"));
        keys.revision() == 199
    });
    both_equal.await.unwrap();
    etcd.shutdown().await;
}

/// Replies to each read with a status, or with no keys if its code is 0.
fn fail_reads(server: &ScriptedServer, code: Arc<AtomicU32>, message: &'static str) {
    server.on(RANGE, move |_| match code.load(Ordering::SeqCst) {
        0 => Reply::message(&RangeResponse {
            header: Some(header(10)),
            ..RangeResponse::default()
        }),
        code => Reply::status(code, message),
    });
}

#[tokio::test]
async fn cache_from_file_outlives_later_failures() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let create = next_create(&mut rx).await;
        tx.send(&created(create.watch_id, 10)).await.unwrap();
        tx.closed().await;
    })
    .await;
    let code = Arc::new(AtomicU32::new(0));
    fail_reads(&server, code.clone(), "scripted");
    let file = FilePath::new();
    let etcd = connect(&server).await;
    let cache = etcd.cache("k/").snapshot_file(&file.0).await.unwrap();
    cache.close().await;
    // Unavailable during the start, and denied after it.
    code.store(14, Ordering::SeqCst);
    let start = etcd.cache("k/").snapshot_file(&file.0);
    let cache = start.start_timeout(Duration::from_millis(100)).await;
    let cache = cache.unwrap();
    code.store(7, Ordering::SeqCst);
    let before = server.count(RANGE);
    until("reads are denied", || server.count(RANGE) >= before + 3).await;
    assert!(
        timeout(Duration::from_millis(50), cache.wait_for_revision(10))
            .await
            .is_err(),
        "the content of a file is not confirmed"
    );
    code.store(0, Ordering::SeqCst);
    let synced = timeout(TEST_TIMEOUT, cache.wait_synced()).await;
    synced.unwrap().unwrap();
    etcd.shutdown().await;
}

#[tokio::test]
async fn first_read_does_not_wait_for_the_watch() {
    let (server, _) =
        start_watch_server(|_, mut tx, _rx, _| async move { tx.closed().await }).await;
    serve_reads(&server, Arc::new(AtomicI64::new(10)));
    let etcd = connect(&server).await;
    let cache = timeout(TEST_TIMEOUT, etcd.cache("k/").into_future()).await;
    let cache = cache.unwrap().unwrap();
    assert_eq!(cache.len(), 1);
    assert!(cache.freshness().is_behind());
    etcd.shutdown().await;
}

#[tokio::test]
async fn first_read_that_is_compacted_again_and_again_fails() {
    let (server, _) =
        start_watch_server(|_, mut tx, _rx, _| async move { tx.closed().await }).await;
    let message = "etcdserver: mvcc: required revision has been compacted";
    fail_reads(&server, Arc::new(AtomicU32::new(11)), message);
    let etcd = connect_with_timeout(&server, Duration::from_millis(300)).await;
    let start = timeout(TEST_TIMEOUT, etcd.cache("k/").into_future()).await;
    assert_eq!(start.unwrap().unwrap_err().kind(), ErrorKind::Compacted);
    assert!(server.count(RANGE) > 1);
    etcd.shutdown().await;
}

#[tokio::test]
async fn consistent_read_after_restore_needs_a_new_read_despite_progress() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let create = next_create(&mut rx).await;
        let id = create.watch_id;
        tx.send(&created(id, 10)).await.unwrap();
        // The last change of a key, and then writes of other keys.
        let change = events(id, false, vec![event("k/1", 11)]);
        tx.send(&change).await.unwrap();
        while next_request(&mut rx).await.is_some() {
            tx.send(&progress(-1, 20)).await.unwrap();
        }
    })
    .await;
    let revision = Arc::new(AtomicI64::new(20));
    serve_reads(&server, revision.clone());
    let etcd = connect_with_timeout(&server, Duration::from_millis(500)).await;
    let cache = etcd.cache("k/").await.unwrap();
    until("the cache has the progress", || {
        cache.freshness().revision >= 20
    })
    .await;
    // The cluster was restored from a backup.
    revision.store(15, Ordering::SeqCst);
    let error = cache.get_consistent("k/1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    etcd.shutdown().await;
}
