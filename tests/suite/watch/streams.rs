//! Streams that are shared by several watches: framing, resets and limits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, WatchEvent,
    proto::{WatchResponse, watch_request::RequestUnion},
    watch::WatchEnd,
};
use h2::Reason;
use prost::Message;
use testbed::framed;
use tokio::{sync::Notify, time::timeout};

use crate::support::{
    wait::{hold, until},
    watch_items::{WATCH_TIMEOUT, next_change, next_item, read_to_end},
    watch_server::{
        WATCH, assert_reopened_with_backoff, connect, connect_with_timeout, created, event, events,
        next_create, next_request, progress, start_watch_server,
    },
};

#[tokio::test]
async fn responses_split_across_frames_are_reassembled() {
    const EVENTS: i64 = 40;
    for size in [1, 4, 5, 30, 100, 1000, 16_384] {
        let (server, _) = start_watch_server(move |nth, mut tx, mut rx, _| async move {
            if nth > 0 {
                // A second stream would hide events that were lost on the first.
                return tx.closed().await;
            }
            let mut ids = Vec::new();
            while ids.len() < 2 {
                ids.push(next_create(&mut rx).await.watch_id);
                tx.send(&created(ids[ids.len() - 1], 5)).await.unwrap();
            }
            let mut bytes = Vec::new();
            let mut write =
                |response: WatchResponse| bytes.extend(framed(&response.encode_to_vec()));
            for nth in 0..EVENTS {
                write(events(ids[0], false, vec![event("a", 6 + nth)]));
                // Responses that the client cannot merge with the previous ones.
                if nth % 10 == 9 {
                    write(events(ids[1], false, vec![event("b", 6 + nth)]));
                    write(progress(ids[0], 6 + nth));
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
            let change = next_change(&mut first).await;
            assert_eq!(
                change,
                (6 + nth, vec!["a".into()]),
                "frames of {size} bytes"
            );
            if nth % 10 == 9 {
                let item = next_item(&mut first).await;
                assert!(matches!(item, WatchEvent::Progress(at) if at == 6 + nth));
                assert_eq!(next_change(&mut second).await, (6 + nth, vec!["b".into()]));
            }
        }
        etcd.shutdown().await;
    }
}

#[tokio::test]
async fn reset_stream_is_reopened_on_same_connection() {
    let event_read = Arc::new(Notify::new());
    let reset = event_read.clone();
    let (server, start_revisions) =
        start_watch_server(move |nth, mut tx, mut rx, start_revisions| {
            let reset = reset.clone();
            async move {
                // The second stream is reset before any response.
                if nth == 1 {
                    return tx.reset(Reason::CANCEL);
                }
                loop {
                    let create = next_create(&mut rx).await;
                    start_revisions.lock().unwrap().push(create.start_revision);
                    let id = create.watch_id;
                    tx.send(&created(id, 5)).await.unwrap();
                    let revision = create.start_revision.max(6);
                    let event = vec![event("a", revision)];
                    tx.send(&events(id, false, event)).await.unwrap();
                    if nth == 0 {
                        // An earlier reset would discard queued responses.
                        reset.notified().await;
                        return tx.reset(Reason::CANCEL);
                    }
                }
            }
        })
        .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    assert_eq!(next_change(&mut watch).await.0, 6);
    event_read.notify_one();
    assert_eq!(next_change(&mut watch).await.0, 7);
    let mut later = etcd.watch("a").await.unwrap();
    assert_eq!(next_change(&mut later).await.0, 6);
    assert_eq!(*start_revisions.lock().unwrap(), [0, 7, 0]);
    assert_eq!(server.accepted(), 1, "the connection was replaced");
    etcd.shutdown().await;
}

#[tokio::test]
async fn streams_broken_after_create_are_reopened_with_backoff() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let id = next_create(&mut rx).await.watch_id;
        tx.send(&created(id, 5)).await.unwrap();
        tx.status(14, "the member stops");
    })
    .await;
    let etcd = connect(&server).await;
    let _watch = etcd.watch("a").await.unwrap();
    hold(Duration::from_secs(2)).await;
    assert_reopened_with_backoff(&server);
    etcd.shutdown().await;
}

#[tokio::test]
async fn server_chosen_watch_ids_are_accepted() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let mut last_id = 1000;
        loop {
            // Creates that arrive together are confirmed together.
            let mut creates = vec![next_create(&mut rx).await];
            let wait = Duration::from_millis(100);
            while let Ok(create) = timeout(wait, next_create(&mut rx)).await {
                creates.push(create);
            }
            for create in creates {
                last_id += 1;
                tx.send(&created(last_id, 5)).await.unwrap();
                let event = event(std::str::from_utf8(&create.key).unwrap(), 6);
                tx.send(&events(last_id, false, vec![event])).await.unwrap();
            }
        }
    })
    .await;
    let etcd = connect_with_timeout(&server, WATCH_TIMEOUT).await;
    let open = |key| etcd.watch(key).into_future();
    let (a, b, c) = tokio::join!(open("a"), open("b"), open("c"));
    for (key, watch) in [("a", a), ("b", b), ("c", c)] {
        assert_eq!(next_change(&mut watch.unwrap()).await.1, [key]);
    }
    let streams = server.count(WATCH);
    assert!(streams < 10, "{streams} streams for three watches");
    etcd.shutdown().await;
}

#[tokio::test]
async fn oversized_event_ends_only_its_watch() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        loop {
            let create = next_create(&mut rx).await;
            let id = create.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
            let mut event = event("a", create.start_revision.max(6));
            if create.key == "large" {
                event.kv.as_mut().unwrap().value = vec![b'v'; 2 << 20].into();
            }
            // The client may reset the stream during the send.
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
    assert_eq!(next_change(&mut small).await.0, 6);
    let mut large = etcd.watch("large").await.unwrap();
    match read_to_end(&mut large).await {
        WatchEnd::Refused(error) => assert_eq!(error.kind(), ErrorKind::ResponseTooLarge),
        other => panic!("{other}"),
    }
    assert_eq!(next_change(&mut small).await.0, 7);
    assert_eq!(server.count(WATCH), 2);
    etcd.shutdown().await;
}

#[tokio::test]
async fn unanswered_create_is_repeated_on_busy_stream() {
    let (server, _) = start_watch_server(|nth, mut tx, mut rx, _| async move {
        let mut busy = None;
        loop {
            match timeout(Duration::from_millis(20), next_create(&mut rx)).await {
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
    let etcd = connect_with_timeout(&server, WATCH_TIMEOUT).await;
    let mut busy = etcd.watch("busy").await.unwrap();
    let opening = tokio::spawn(etcd.watch("late").into_future());
    let mut revision = 6;
    while !opening.is_finished() {
        assert_eq!(next_change(&mut busy).await.0, revision);
        revision += 1;
    }
    let _late = opening.await.unwrap().unwrap();
    assert_eq!(server.count(WATCH), 2);
    etcd.shutdown().await;
}

#[tokio::test]
async fn watches_per_stream_option_limits_sharing() {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let counter = cancelled.clone();
    let (server, _) = start_watch_server(move |_, mut tx, mut rx, _| {
        let cancelled = counter.clone();
        async move {
            while let Some(request) = next_request(&mut rx).await {
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
    // A new watch takes the place of a dropped one.
    drop(watches.remove(0));
    until("the server receives the cancel", || {
        cancelled.load(Ordering::SeqCst) == 1
    })
    .await;
    for streams in [3, 3, 4] {
        watches.push(etcd.watch("a").await.unwrap());
        assert_eq!(server.count(WATCH), streams);
    }
    etcd.shutdown().await;
}
