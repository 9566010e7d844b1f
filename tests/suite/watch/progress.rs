//! Progress requests.

use std::time::{Duration, Instant};

use actix_etcd::{ErrorKind, proto::watch_request::RequestUnion};

use crate::support::{
    watch_items::read_to_end,
    watch_server::{
        connect, connect_with_timeout, created, next_request, progress, start_watch_server,
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
