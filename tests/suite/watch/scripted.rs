//! Watches against a scripted server, for behaviour that a real etcd does not show on demand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, WatchEvent,
    proto::{ResponseHeader, WatchResponse, watch_request::RequestUnion},
    watch::WatchEnd,
};
use testbed::{Reply, ScriptedServer};

use crate::support::{
    quiet_window::ready_members,
    wait::until,
    watch_items::{WATCH_TIMEOUT, next_change, next_item, read_to_end},
    watch_server::{
        WATCH, assert_reopened_with_backoff, connect, connect_with_timeout, created, event, events,
        header, next_create, next_request, progress, refused, start_watch_server,
    },
};

#[tokio::test]
async fn stream_ending_between_fragments_resumes_at_incomplete_revision() {
    let (server, start_revisions) =
        start_watch_server(|nth, mut tx, mut rx, start_revisions| async move {
            let create = next_create(&mut rx).await;
            start_revisions.lock().unwrap().push(create.start_revision);
            let id = create.watch_id;
            tx.send(&created(id, 1000)).await.unwrap();
            if nth == 0 {
                let first = vec![event("a", 4), event("a", 5)];
                tx.send(&events(id, true, first)).await.unwrap();
                tx.status(14, "the member stops");
                return;
            }
            let complete = vec![event("a", 5), event("b", 5), event("a", 6)];
            tx.send(&events(id, false, complete)).await.unwrap();
            tx.closed().await;
        })
        .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").from_key().start_revision(2).await.unwrap();
    assert_eq!(next_change(&mut watch).await, (4, vec!["a".into()]));
    assert_eq!(
        next_change(&mut watch).await,
        (5, vec!["a".into(), "b".into()])
    );
    assert_eq!(next_change(&mut watch).await, (6, vec!["a".into()]));
    assert_eq!(*start_revisions.lock().unwrap(), [2, 5]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn headers_and_early_progress_do_not_move_cursor() {
    let (server, start_revisions) =
        start_watch_server(|nth, mut tx, mut rx, start_revisions| async move {
            let create = next_create(&mut rx).await;
            start_revisions.lock().unwrap().push(create.start_revision);
            let id = create.watch_id;
            // Progress before the create response, and progress before the start revision: both must be ignored.
            tx.send(&progress(-1, 1000)).await.unwrap();
            tx.send(&created(id, 1000)).await.unwrap();
            tx.send(&progress(id, 100)).await.unwrap();
            match nth {
                0 => tx.send(&events(id, false, vec![event("a", 300)])).await,
                1 => tx.send(&progress(id, 400)).await,
                _ => tx.send(&events(id, false, vec![event("a", 500)])).await,
            }
            .unwrap();
            if nth == 2 {
                tx.closed().await;
            }
        })
        .await;
    let etcd = connect(&server).await;
    let open = etcd.watch("a").start_revision(200).progress_notify();
    let mut watch = open.await.unwrap();
    assert_eq!(next_change(&mut watch).await.0, 300);
    assert!(matches!(
        next_item(&mut watch).await,
        WatchEvent::Progress(400)
    ));
    assert_eq!(next_change(&mut watch).await.0, 500);
    assert_eq!(*start_revisions.lock().unwrap(), [200, 301, 401]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn refused_watch_does_not_affect_others() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let mut confirmed = Vec::new();
        for _ in 0..3 {
            let create = next_create(&mut rx).await;
            if create.key == "refused" {
                let reason =
                    "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
                tx.send(&refused(reason)).await.unwrap();
            } else {
                tx.send(&created(create.watch_id, 5)).await.unwrap();
                confirmed.push(create.watch_id);
            }
        }
        for id in confirmed {
            tx.send(&events(id, false, vec![event("a", 6)]))
                .await
                .unwrap();
        }
        tx.closed().await;
    })
    .await;
    let etcd = connect(&server).await;
    let mut first = etcd.watch("a").await.unwrap();
    let error = etcd.watch("refused").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let mut second = etcd.watch("a").await.unwrap();
    assert_eq!(next_change(&mut first).await.0, 6);
    assert_eq!(next_change(&mut second).await.0, 6);
    assert_eq!(server.count(WATCH), 1, "more than one stream");
    etcd.shutdown().await;
}

#[tokio::test]
async fn cancel_reason_determines_watch_end() {
    let reasons = [
        "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
        "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
        "something else",
        "",
    ];
    for (case, reason) in reasons.into_iter().enumerate() {
        let (server, start_revisions) =
            start_watch_server(move |_, mut tx, mut rx, start_revisions| async move {
                for nth in 0.. {
                    let create = next_create(&mut rx).await;
                    start_revisions.lock().unwrap().push(create.start_revision);
                    let id = create.watch_id;
                    tx.send(&created(id, 5)).await.unwrap();
                    let revision = create.start_revision.max(6);
                    tx.send(&events(id, false, vec![event("a", revision)]))
                        .await
                        .unwrap();
                    if nth == 0 {
                        let cancel = WatchResponse {
                            canceled: true,
                            cancel_reason: reason.to_owned(),
                            ..progress(id, 0)
                        };
                        tx.send(&cancel).await.unwrap();
                    }
                }
            })
            .await;
        let etcd = connect(&server).await;
        let mut watch = etcd.watch("a").await.unwrap();
        assert_eq!(next_change(&mut watch).await.0, 6);
        if case >= 2 {
            assert_eq!(next_change(&mut watch).await.0, 7, "{reason}");
            assert_eq!(*start_revisions.lock().unwrap(), [0, 7]);
        } else {
            match (case, read_to_end(&mut watch).await) {
                (0, WatchEnd::PermissionDenied(_)) => {}
                (1, WatchEnd::Refused(error)) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidAuthToken);
                }
                (_, other) => panic!("{reason}: {other}"),
            }
        }
        etcd.shutdown().await;
    }
}

#[tokio::test]
async fn unknown_refusal_is_retried_before_watch_ends() {
    const REASON: &str = "etcdserver: something else";
    let refuse = Arc::new(AtomicUsize::new(3));
    let refusals = refuse.clone();
    let (server, start_revisions) =
        start_watch_server(move |_, mut tx, mut rx, start_revisions| {
            let refusals = refusals.clone();
            async move {
                loop {
                    let create = next_create(&mut rx).await;
                    start_revisions.lock().unwrap().push(create.start_revision);
                    let left = refusals.load(Ordering::SeqCst);
                    refusals.store(left.saturating_sub(1), Ordering::SeqCst);
                    let response = match left {
                        0 => created(create.watch_id, 5),
                        _ => refused(REASON),
                    };
                    tx.send(&response).await.unwrap();
                }
            }
        })
        .await;
    let etcd = connect_with_timeout(&server, WATCH_TIMEOUT).await;
    let _watch = etcd.watch("a").await.unwrap();
    assert_eq!(start_revisions.lock().unwrap().len(), 4);
    refuse.store(usize::MAX, Ordering::SeqCst);
    let error = etcd.watch("b").await.unwrap_err();
    assert!(error.to_string().contains(REASON), "{error}");
    assert_eq!(start_revisions.lock().unwrap().len(), 10);
    etcd.shutdown().await;
}

#[tokio::test]
async fn unanswered_progress_request_is_repeated() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let id = next_create(&mut rx).await.watch_id;
        tx.send(&created(id, 5)).await.unwrap();
        let mut requests = 0;
        while let Some(request) = next_request(&mut rx).await {
            if matches!(request, RequestUnion::ProgressRequest(_)) {
                requests += 1;
            }
            if requests == 3 {
                tx.send(&progress(-1, 9)).await.unwrap();
            }
        }
    })
    .await;
    let etcd = connect(&server).await;
    let watch = etcd.watch("a").await.unwrap();
    assert_eq!(watch.request_progress().await.unwrap(), 9);
    etcd.shutdown().await;
}

#[tokio::test]
async fn watch_leaves_member_that_never_confirms_create() {
    let (silent, _) = start_watch_server(|_, mut tx, rx, _| async move {
        // Dropping the receiver would reset the stream.
        let _open = rx;
        tx.closed().await;
    })
    .await;
    let (responsive, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        loop {
            let id = next_create(&mut rx).await.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
        }
    })
    .await;
    let etcd = Client::builder([silent.endpoint(), responsive.endpoint()])
        .request_timeout(WATCH_TIMEOUT)
        .connect()
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    let mut watches = Vec::new();
    // Round robin: one of the two watches starts at the silent member.
    for _ in 0..2 {
        watches.push(etcd.watch("a").await.unwrap());
    }
    assert!(silent.count(WATCH) > 0, "no stream to the silent member");
    etcd.shutdown().await;
}

#[tokio::test]
async fn failing_streams_are_reopened_with_backoff() {
    let server = ScriptedServer::start().await;
    server.on_headers(WATCH, |_| Reply::status(14, "etcdserver: server stopped"));
    let etcd = connect_with_timeout(&server, Duration::from_secs(2)).await;
    let error = etcd.watch("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_reopened_with_backoff(&server);
    etcd.shutdown().await;
}

#[tokio::test]
async fn revision_regression_and_cluster_change_are_reported() {
    let (server, _) = start_watch_server(|nth, mut tx, mut rx, _| async move {
        let id = next_create(&mut rx).await.watch_id;
        let created_by_cluster = |cluster_id| {
            let header = Some(ResponseHeader {
                cluster_id,
                ..header(1)
            });
            WatchResponse {
                header,
                ..created(id, 0)
            }
        };
        match nth {
            0 => tx.send(&created(id, 900)).await,
            1 => tx.send(&created_by_cluster(1)).await,
            _ => tx.send(&created_by_cluster(7)).await,
        }
        .unwrap();
        if nth == 2 {
            tx.closed().await;
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    assert!(matches!(
        next_item(&mut watch).await,
        WatchEvent::RevisionRegressed {
            seen: 900,
            current: 1
        }
    ));
    assert!(matches!(
        read_to_end(&mut watch).await,
        WatchEnd::ClusterChanged {
            previous: 1,
            current: 7
        }
    ));
    etcd.shutdown().await;
}

/// Everything runs on one thread, so that the reader runs whenever the stream waits for it.
#[actix::test]
async fn active_reader_of_fast_server_never_pauses() {
    const BATCHES: i64 = 1000;
    const EVENTS_PER_BATCH: i64 = 100;
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let id = next_create(&mut rx).await.watch_id;
        tx.send(&created(id, 1)).await.unwrap();
        for batch in 0..BATCHES {
            let first = 2 + batch * EVENTS_PER_BATCH;
            let batch = (first..first + EVENTS_PER_BATCH).map(|revision| event("a", revision));
            tx.send(&events(id, false, batch.collect())).await.unwrap();
        }
        tx.closed().await;
    })
    .await;
    let etcd = Client::builder([server.endpoint()])
        .on_current_arbiter()
        .connect()
        .await
        .unwrap();
    let mut watch = etcd.watch("a").status_events().await.unwrap();
    for revision in 2..2 + BATCHES * EVENTS_PER_BATCH {
        match next_item(&mut watch).await {
            WatchEvent::Events(events) => assert_eq!(events.revision(), revision),
            other => panic!("{other:?}"),
        }
    }
    etcd.shutdown().await;
}
