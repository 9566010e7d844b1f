//! Progress requests.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix_etcd::{ErrorKind, WatchEvent, proto::watch_request::RequestUnion};
use testbed::{Cluster, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio::{sync::Notify, time::sleep};

use crate::support::{
    connected_cluster,
    watch_items::{next_change, next_item, read_to_end},
    watch_server::{
        StartRevisions, connect, connect_with_timeout, created, event, events, next_create,
        next_request, progress, start_watch_server,
    },
};

#[tokio::test]
async fn unanswered_progress_request_fails_at_deadline() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        while let Some(request) = next_request(&mut rx).await {
            if let RequestUnion::CreateRequest(create) = request {
                tx.send(&created(create.watch_id, 5)).await.unwrap();
            }
        }
    })
    .await;
    let timeout = Duration::from_secs(1);
    let etcd = connect_with_timeout(&server, timeout).await;
    let watch = etcd.watch("a").await.unwrap();
    let start = Instant::now();
    let error = watch.request_progress().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(start.elapsed() >= timeout);
    etcd.shutdown().await;
}

#[tokio::test]
async fn unanswered_progress_requests_do_not_delay_later_watches() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let mut creates = 0;
        while let Some(request) = next_request(&mut rx).await {
            match request {
                RequestUnion::CreateRequest(create) => {
                    creates += 1;
                    tx.send(&created(create.watch_id, 5)).await.unwrap();
                }
                // No progress while only the first watch exists, like etcd while a watch is behind.
                RequestUnion::ProgressRequest(_) if creates > 1 => {
                    tx.send(&progress(-1, 5)).await.unwrap();
                }
                _ => {}
            }
        }
    })
    .await;
    let etcd = connect_with_timeout(&server, Duration::from_secs(3)).await;
    let first = etcd.watch("a").await.unwrap();
    first.request_progress().await.unwrap_err();
    for start in [0, 6] {
        let later = etcd.watch("a").start_revision(start).await.unwrap();
        assert_eq!(later.request_progress().await.unwrap(), 5);
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn progress_request_on_ended_watch_returns_reason() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        while let Some(request) = next_request(&mut rx).await {
            if let RequestUnion::CreateRequest(create) = request {
                tx.send(&created(create.watch_id, 5)).await.unwrap();
            }
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    let pending = tokio::spawn(watch.request_progress());
    watch.cancel();
    let error = pending.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WatchCanceled);
    read_to_end(&mut watch).await;
    let error = watch.request_progress().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WatchCanceled);
    let other = etcd.watch("a").await.unwrap();
    etcd.shutdown().await;
    let error = other.request_progress().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
}

/// Starts a server of this version whose first stream responds to a progress request before it has sent the events
/// that the response covers. It sends them when notified, and ends the stream when notified again. Later streams send
/// one event at the start revision, or at 31.
async fn start_overtaking_server(
    version: &str,
    step: Arc<Notify>,
) -> (ScriptedServer, StartRevisions) {
    let (server, start_revisions) = start_watch_server(move |nth, mut tx, mut rx, starts| {
        let step = step.clone();
        async move {
            let create = next_create(&mut rx).await;
            starts.lock().unwrap().push(create.start_revision);
            let id = create.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
            if nth > 0 {
                let missed = (create.start_revision..=31).map(|revision| event("a", revision));
                tx.send(&events(id, false, missed.collect())).await.unwrap();
                return tx.closed().await;
            }
            tx.send(&events(id, false, vec![event("a", 6)]))
                .await
                .unwrap();
            while !matches!(
                next_request(&mut rx).await,
                Some(RequestUnion::ProgressRequest(_))
            ) {}
            tx.send(&progress(-1, 30)).await.unwrap();
            step.notified().await;
            let late = vec![event("a", 7), event("b", 7), event("a", 8)];
            tx.send(&events(id, false, late)).await.unwrap();
            step.notified().await;
            tx.status(14, "the member stops");
        }
    })
    .await;
    let status = StatusResponse {
        version: version.to_owned(),
        ..StatusResponse::healthy()
    };
    server.on(STATUS, move |_| Reply::message(&status));
    (server, start_revisions)
}

#[tokio::test]
async fn events_overtaken_by_progress_are_delivered() {
    for (version, resumed_at) in [("3.5.7", 9), ("3.5.8", 31)] {
        let step = Arc::new(Notify::new());
        let (server, start_revisions) = start_overtaking_server(version, step.clone()).await;
        let etcd = connect(&server).await;
        let mut watch = etcd.watch("a").await.unwrap();
        assert_eq!(next_change(&mut watch).await.0, 6);
        assert_eq!(watch.request_progress().await.unwrap(), 30);
        assert!(matches!(
            next_item(&mut watch).await,
            WatchEvent::Progress(30)
        ));
        step.notify_one();
        let keys = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(next_change(&mut watch).await, (7, keys(&["a", "b"])));
        assert_eq!(next_change(&mut watch).await, (8, keys(&["a"])));
        step.notify_one();
        assert_eq!(next_change(&mut watch).await.0, resumed_at, "{version}");
        assert_eq!(*start_revisions.lock().unwrap(), [0, resumed_at]);
        etcd.shutdown().await;
    }
}

/// The replay of the history takes longer than the time after which progress of such a server usually counts.
#[tokio::test]
async fn long_replay_overtaken_by_progress_is_resumed() {
    let (server, start_revisions) = start_watch_server(|nth, mut tx, mut rx, starts| async move {
        let create = next_create(&mut rx).await;
        starts.lock().unwrap().push(create.start_revision);
        let id = create.watch_id;
        tx.send(&created(id, 90)).await.unwrap();
        let mut replayed = create.start_revision..=90;
        if nth == 0 {
            while !matches!(
                next_request(&mut rx).await,
                Some(RequestUnion::ProgressRequest(_))
            ) {}
            tx.send(&progress(-1, 90)).await.unwrap();
            for revision in replayed.by_ref().take(25) {
                sleep(Duration::from_millis(50)).await;
                let event = vec![event("a", revision)];
                tx.send(&events(id, false, event)).await.unwrap();
            }
            return tx.status(14, "the member stops");
        }
        let rest = replayed.map(|revision| event("a", revision)).collect();
        tx.send(&events(id, false, rest)).await.unwrap();
        tx.closed().await;
    })
    .await;
    let status = StatusResponse {
        version: "3.5.7".to_owned(),
        ..StatusResponse::healthy()
    };
    server.on(STATUS, move |_| Reply::message(&status));
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").start_revision(10).await.unwrap();
    assert_eq!(watch.request_progress().await.unwrap(), 90);
    next_item(&mut watch).await;
    for revision in 10..=90 {
        assert_eq!(next_change(&mut watch).await.0, revision);
    }
    assert_eq!(*start_revisions.lock().unwrap(), [10, 35]);
    etcd.shutdown().await;
}

#[tokio::test]
async fn early_progress_is_not_read_position() {
    let (server, _) = start_overtaking_server("3.4.24", Arc::new(Notify::new())).await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    assert_eq!(next_change(&mut watch).await.0, 6);
    assert_eq!(watch.request_progress().await.unwrap(), 30);
    next_item(&mut watch).await;
    assert_eq!(watch.revision(), 6);
    etcd.shutdown().await;
}

#[tokio::test]
async fn future_watch_does_not_block_progress_of_neighbours() {
    let cluster = Cluster::start(1).await;
    let etcd = connected_cluster::connect(cluster.endpoints()).await;
    let mut revision = etcd.put("a", "v").await.unwrap().header.revision;
    let start = revision + 20;
    let mut future = etcd.watch("b").start_revision(start).await.unwrap();
    let neighbour = etcd.watch("a").await.unwrap();
    for _ in 0..3 {
        revision = etcd.put("a", "v").await.unwrap().header.revision;
        while neighbour.request_progress().await.unwrap() < revision {}
    }
    let later = etcd.watch("a").start_revision(revision).await.unwrap();
    while later.request_progress().await.unwrap() < revision {}
    while revision < start + 2 {
        revision = etcd.put("b", "v").await.unwrap().header.revision;
    }
    for expected in start..=start + 2 {
        assert_eq!(next_change(&mut future).await.0, expected);
    }
    while future.request_progress().await.unwrap() < revision {}
    etcd.shutdown().await;
}
