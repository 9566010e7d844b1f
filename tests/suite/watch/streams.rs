//! Streams that many watches share, and how they end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, WatchEnd, WatchItem,
    proto::{WatchResponse, watch_request::RequestUnion},
};
use h2::Reason;
use prost::Message;
use testbed::framed;
use tokio::{sync::Notify, time::timeout};

use crate::{
    support::{
        wait::{hold, until},
        watch_server::{WATCH, connect, create, created, event, events, progress, request, server},
    },
    watch::operations::{SOON, item, last_item, next},
};

#[tokio::test]
async fn answers_arrive_wherever_frames_cut_them() {
    const EVENTS: i64 = 40;
    for size in [1, 4, 5, 30, 100, 1000, 16_384] {
        let (server, _) = server(move |nth, mut tx, mut rx, _| async move {
            if nth > 0 {
                // It would make up for what was misread.
                return tx.closed().await;
            }
            let mut ids = Vec::new();
            while ids.len() < 2 {
                ids.push(create(&mut rx).await.watch_id);
                tx.send(&created(ids[ids.len() - 1], 5)).await.unwrap();
            }
            let mut bytes = Vec::new();
            let mut say = |answer: WatchResponse| bytes.extend(framed(&answer.encode_to_vec()));
            for nth in 0..EVENTS {
                say(events(ids[0], false, vec![event("a", 6 + nth)]));
                // Between those that are joined, what can't be.
                if nth % 10 == 9 {
                    say(events(ids[1], false, vec![event("b", 6 + nth)]));
                    say(progress(ids[0], 6 + nth));
                }
            }
            for frame in bytes.chunks(size) {
                tx.send_raw(frame.to_vec().into()).await.unwrap();
            }
            tx.closed().await;
        })
        .await;
        let etcd = connect(&server).await;
        let mut first = etcd.watch("a").progress_notify().await.unwrap();
        let mut second = etcd.watch("b").await.unwrap();
        for nth in 0..EVENTS {
            let told = next(&mut first).await;
            assert_eq!(told, (6 + nth, vec!["a".into()]), "frames of {size}");
            if nth % 10 == 9 {
                let told = item(&mut first).await;
                assert!(matches!(told, WatchItem::Progress(at) if at == 6 + nth));
                assert_eq!(next(&mut second).await, (6 + nth, vec!["b".into()]));
            }
        }
        etcd.shutdown().await;
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_is_opened_again_on_the_same_connection() {
    let read = Arc::new(Notify::new());
    let told = read.clone();
    let (server, starts) = server(move |nth, mut tx, mut rx, starts| {
        let read = told.clone();
        async move {
            // One reset before any answer, too.
            if nth == 1 {
                return tx.reset(Reason::CANCEL);
            }
            loop {
                let create = create(&mut rx).await;
                starts.lock().unwrap().push(create.start_revision);
                let id = create.watch_id;
                tx.send(&created(id, 5)).await.unwrap();
                let revision = create.start_revision.max(6);
                let event = vec![event("a", revision)];
                tx.send(&events(id, false, event)).await.unwrap();
                if nth == 0 {
                    // It would overtake what is still queued.
                    read.notified().await;
                    return tx.reset(Reason::CANCEL);
                }
            }
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    assert_eq!(next(&mut watch).await.0, 6);
    read.notify_one();
    assert_eq!(next(&mut watch).await.0, 7);
    let mut later = etcd.watch("a").await.unwrap();
    assert_eq!(next(&mut later).await.0, 6);
    assert_eq!(*starts.lock().unwrap(), [0, 7, 0]);
    assert_eq!(server.accepted(), 1, "the connection was well");
    etcd.shutdown().await;
}

#[tokio::test]
async fn streams_that_break_after_each_create_are_opened_again_with_pauses() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        let id = create(&mut rx).await.watch_id;
        tx.send(&created(id, 5)).await.unwrap();
        tx.status(14, "the member stops");
    })
    .await;
    let etcd = connect(&server).await;
    let _watch = etcd.watch("a").await.unwrap();
    hold(Duration::from_secs(2)).await;
    let tries = server.count(WATCH);
    assert!((3..20).contains(&tries), "{tries} tries in two seconds");
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_server_that_chooses_the_ids_of_watches_itself_carries_them_all() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        let mut last = 1000;
        loop {
            // What is sent together is answered together.
            let mut creates = vec![create(&mut rx).await];
            let brief = Duration::from_millis(100);
            while let Ok(create) = timeout(brief, create(&mut rx)).await {
                creates.push(create);
            }
            for create in creates {
                last += 1;
                tx.send(&created(last, 5)).await.unwrap();
                let event = event(std::str::from_utf8(&create.key).unwrap(), 6);
                tx.send(&events(last, false, vec![event])).await.unwrap();
            }
        }
    })
    .await;
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(SOON)
        .connect()
        .await
        .unwrap();
    let open = |key| etcd.watch(key).into_future();
    let (a, b, c) = tokio::join!(open("a"), open("b"), open("c"));
    for (key, watch) in [("a", a), ("b", b), ("c", c)] {
        assert_eq!(next(&mut watch.unwrap()).await.1, [key]);
    }
    let tries = server.count(WATCH);
    assert!(tries < 10, "{tries} streams for three watches");
    etcd.shutdown().await;
}

#[tokio::test]
async fn an_event_larger_than_the_client_accepts_ends_its_watch_and_no_other() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        loop {
            let create = create(&mut rx).await;
            let id = create.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
            let mut event = event("a", create.start_revision.max(6));
            if create.key == "large" {
                event.kv.as_mut().unwrap().value = vec![b'v'; 2 << 20].into();
            }
            // The client may give up half-way.
            let _ = tx.send(&events(id, false, vec![event])).await;
        }
    })
    .await;
    let etcd = Client::builder([server.endpoint()])
        .max_response_size(1 << 20)
        .connect()
        .await
        .unwrap();
    let mut small = etcd.watch("small").await.unwrap();
    assert_eq!(next(&mut small).await.0, 6);
    let mut large = etcd.watch("large").await.unwrap();
    match last_item(&mut large).await {
        WatchEnd::Refused(why) => assert_eq!(why.kind(), ErrorKind::ResponseTooLarge),
        other => panic!("{other}"),
    }
    assert_eq!(next(&mut small).await.0, 7);
    assert_eq!(server.count(WATCH), 2);
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_create_that_is_never_answered_is_made_again_however_busy_the_stream_is() {
    let (server, _) = server(|nth, mut tx, mut rx, _| async move {
        let mut busy = None;
        loop {
            match timeout(Duration::from_millis(20), create(&mut rx)).await {
                Ok(create) if create.key == "busy" => {
                    tx.send(&created(create.watch_id, 5)).await.unwrap();
                    busy = Some((create.watch_id, create.start_revision.max(6)));
                }
                Ok(create) if nth > 0 => {
                    tx.send(&created(create.watch_id, 5)).await.unwrap();
                }
                _ => {}
            }
            if let Some((id, revision)) = &mut busy {
                let event = vec![event("a", *revision)];
                if tx.send(&events(*id, false, event)).await.is_err() {
                    return;
                }
                *revision += 1;
            }
        }
    })
    .await;
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(SOON)
        .connect()
        .await
        .unwrap();
    let mut busy = etcd.watch("busy").await.unwrap();
    let opening = tokio::spawn(etcd.watch("late").into_future());
    let mut revision = 6;
    while !opening.is_finished() {
        assert_eq!(next(&mut busy).await.0, revision);
        revision += 1;
    }
    let _late = opening.await.unwrap().unwrap();
    assert_eq!(server.count(WATCH), 2);
    etcd.shutdown().await;
}

#[tokio::test]
async fn as_many_watches_share_a_stream_as_the_option_says() {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let told = cancelled.clone();
    let (server, _) = server(move |_, mut tx, mut rx, _| {
        let cancelled = told.clone();
        async move {
            while let Some(request) = request(&mut rx).await {
                match request {
                    RequestUnion::CreateRequest(create) => {
                        tx.send(&created(create.watch_id, 5)).await.unwrap();
                    }
                    RequestUnion::CancelRequest(_) => {
                        cancelled.fetch_add(1, Ordering::SeqCst);
                    }
                    RequestUnion::ProgressRequest(_) => {}
                }
            }
        }
    })
    .await;
    let etcd = Client::builder([server.endpoint()])
        .watches_per_stream(2)
        .connect()
        .await
        .unwrap();
    let mut watches = Vec::new();
    for streams in [1, 1, 2, 2, 3] {
        watches.push(etcd.watch("a").await.unwrap());
        assert_eq!(server.count(WATCH), streams);
    }
    // A place that was given up is taken again.
    drop(watches.remove(0));
    until("a cancel", || cancelled.load(Ordering::SeqCst) == 1).await;
    for streams in [3, 3, 4] {
        watches.push(etcd.watch("a").await.unwrap());
        assert_eq!(server.count(WATCH), streams);
    }
    etcd.shutdown().await;
}
