//! What etcd can't be made to do on demand.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, WatchEvent,
    proto::{ResponseHeader, WatchResponse, watch_request::RequestUnion},
    watch::WatchEnd,
};
use testbed::{Reply, ScriptedServer};

use crate::{
    support::{
        quiet_window::ready,
        wait::until,
        watch_server::{
            WATCH, connect, create, created, event, events, header, progress, refused, request,
            server,
        },
    },
    watch::operations::{SOON, item, last_item, next},
};

#[tokio::test]
async fn a_stream_that_ends_between_two_fragments_is_resumed_at_the_open_revision() {
    let (server, starts) = server(|nth, mut tx, mut rx, starts| async move {
        let create = create(&mut rx).await;
        starts.lock().unwrap().push(create.start_revision);
        let id = create.watch_id;
        tx.send(&created(id, 1000)).await.unwrap();
        if nth == 0 {
            let first = vec![event("a", 4), event("a", 5)];
            tx.send(&events(id, true, first)).await.unwrap();
            tx.status(14, "the member stops");
            return;
        }
        let whole = vec![event("a", 5), event("b", 5), event("a", 6)];
        tx.send(&events(id, false, whole)).await.unwrap();
        tx.stopped().await;
    })
    .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").from_key().start_revision(2).await.unwrap();
    assert_eq!(next(&mut watch).await, (4, vec!["a".into()]));
    assert_eq!(next(&mut watch).await, (5, vec!["a".into(), "b".into()]));
    assert_eq!(next(&mut watch).await, (6, vec!["a".into()]));
    assert_eq!(*starts.lock().unwrap(), [2, 5]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn neither_headers_nor_early_progress_move_the_place_to_resume_from() {
    let (server, starts) = server(|nth, mut tx, mut rx, starts| async move {
        let create = create(&mut rx).await;
        starts.lock().unwrap().push(create.start_revision);
        let id = create.watch_id;
        // Progress that overtook the answer, and progress before the start: both say nothing.
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
            tx.stopped().await;
        }
    })
    .await;
    let etcd = connect(&server).await;
    let open = etcd.watch("a").start_revision(200).progress_notify();
    let mut watch = open.await.unwrap();
    assert_eq!(next(&mut watch).await.0, 300);
    assert!(matches!(item(&mut watch).await, WatchEvent::Progress(400)));
    assert_eq!(next(&mut watch).await.0, 500);
    assert_eq!(*starts.lock().unwrap(), [200, 301, 401]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_refused_watch_leaves_those_beside_it_alone() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        let mut live = Vec::new();
        for _ in 0..3 {
            let create = create(&mut rx).await;
            if create.key == "refused" {
                let why = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
                tx.send(&refused(why)).await.unwrap();
            } else {
                tx.send(&created(create.watch_id, 5)).await.unwrap();
                live.push(create.watch_id);
            }
        }
        for id in live {
            tx.send(&events(id, false, vec![event("a", 6)]))
                .await
                .unwrap();
        }
        tx.stopped().await;
    })
    .await;
    let etcd = connect(&server).await;
    let mut first = etcd.watch("a").await.unwrap();
    let why = etcd.watch("refused").await.unwrap_err();
    assert_eq!(why.kind(), ErrorKind::PermissionDenied);
    let mut second = etcd.watch("a").await.unwrap();
    assert_eq!(next(&mut first).await.0, 6);
    assert_eq!(next(&mut second).await.0, 6);
    assert_eq!(server.count(WATCH), 1, "all on one stream");
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_cancel_means_what_its_reason_says() {
    let reasons = [
        "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
        "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
        "something else",
        "",
    ];
    for (case, reason) in reasons.into_iter().enumerate() {
        let (server, starts) = server(move |_, mut tx, mut rx, starts| async move {
            for nth in 0.. {
                let create = create(&mut rx).await;
                starts.lock().unwrap().push(create.start_revision);
                let id = create.watch_id;
                tx.send(&created(id, 5)).await.unwrap();
                let next = create.start_revision.max(6);
                tx.send(&events(id, false, vec![event("a", next)]))
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
        assert_eq!(next(&mut watch).await.0, 6);
        if reason.is_empty() {
            assert_eq!(next(&mut watch).await.0, 7);
            assert_eq!(*starts.lock().unwrap(), [0, 7]);
        } else {
            match (case, last_item(&mut watch).await) {
                (0, WatchEnd::PermissionDenied(_)) => {}
                (1, WatchEnd::Refused(why)) => {
                    assert_eq!(why.kind(), ErrorKind::InvalidAuthToken);
                }
                (2, WatchEnd::Refused(why)) => assert!(why.to_string().contains(reason)),
                (_, other) => panic!("{reason}: {other}"),
            }
        }
        etcd.shutdown().await;
    }
}

#[tokio::test]
async fn a_silent_server_is_asked_for_progress_again() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        let id = create(&mut rx).await.watch_id;
        tx.send(&created(id, 5)).await.unwrap();
        let mut asked = 0;
        while let Some(request) = request(&mut rx).await {
            if matches!(request, RequestUnion::ProgressRequest(_)) {
                asked += 1;
            }
            if asked == 3 {
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
async fn a_member_that_creates_no_watch_is_left_for_another() {
    let (silent, _) = server(|_, mut tx, rx, _| async move {
        // Dropped, it would reset the stream.
        let _open = rx;
        tx.stopped().await;
    })
    .await;
    let (good, _) = server(|_, mut tx, mut rx, _| async move {
        loop {
            let id = create(&mut rx).await.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
        }
    })
    .await;
    let etcd = Client::builder([silent.endpoint(), good.endpoint()])
        .request_timeout(SOON)
        .connect()
        .await
        .unwrap();
    until("both are ready", || ready(&etcd) == 2).await;
    let mut watches = Vec::new();
    // Round robin: one of the two begins at the silent member.
    for _ in 0..2 {
        watches.push(etcd.watch("a").await.unwrap());
    }
    assert!(silent.count(WATCH) > 0, "nobody asked the silent member");
    etcd.shutdown().await;
}

#[tokio::test]
async fn streams_that_fail_at_once_are_opened_again_with_pauses() {
    let server = ScriptedServer::start().await;
    server.on_head(WATCH, |_| Reply::status(14, "etcdserver: server stopped"));
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let late = etcd.watch("a").await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    let tries = server.count(WATCH);
    assert!((3..20).contains(&tries), "{tries} tries in two seconds");
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_member_that_is_behind_and_another_cluster_are_told() {
    let (server, _) = server(|nth, mut tx, mut rx, _| async move {
        let id = create(&mut rx).await.watch_id;
        let header_of = |cluster_id| {
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
            1 => tx.send(&header_of(1)).await,
            _ => tx.send(&header_of(7)).await,
        }
        .unwrap();
        if nth == 2 {
            tx.stopped().await;
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    assert!(matches!(
        item(&mut watch).await,
        WatchEvent::RevisionRegressed {
            seen: 900,
            current: 1
        }
    ));
    assert!(matches!(
        last_item(&mut watch).await,
        WatchEnd::ClusterChanged { was: 1, is: 7 }
    ));
    etcd.shutdown().await;
}

/// On one thread, so that the reader runs whenever the stream waits for it.
#[actix::test]
async fn a_reader_that_reads_never_lags_however_fast_the_server_is() {
    const BATCHES: i64 = 1000;
    const EACH: i64 = 100;
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        let id = create(&mut rx).await.watch_id;
        tx.send(&created(id, 1)).await.unwrap();
        for batch in 0..BATCHES {
            let first = 2 + batch * EACH;
            let batch = (first..first + EACH).map(|revision| event("a", revision));
            tx.send(&events(id, false, batch.collect())).await.unwrap();
        }
        tx.stopped().await;
    })
    .await;
    let etcd = Client::builder([server.endpoint()])
        .on_current_arbiter()
        .connect()
        .await
        .unwrap();
    let mut watch = etcd.watch("a").status_events().await.unwrap();
    for revision in 2..2 + BATCHES * EACH {
        match item(&mut watch).await {
            WatchEvent::Events(events) => assert_eq!(events.revision(), revision),
            other => panic!("{other:?}"),
        }
    }
    etcd.shutdown().await;
}
