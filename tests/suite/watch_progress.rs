//! How far a watch has come, asked for.

use std::time::{Duration, Instant};

use actix_etcd::{Client, ErrorKind, proto::watch_request::RequestUnion};

use crate::{
    watch::last_item,
    watch_script::{connect, created, request, server},
};

#[tokio::test]
async fn progress_that_is_never_told_is_waited_for_until_the_deadline() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        while let Some(request) = request(&mut rx).await {
            if let RequestUnion::CreateRequest(create) = request {
                tx.send(&created(create.watch_id, 5)).await.unwrap();
            }
        }
    })
    .await;
    let timeout = Duration::from_secs(1);
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(timeout)
        .connect()
        .await
        .unwrap();
    let watch = etcd.watch("a").await.unwrap();
    let began = Instant::now();
    let late = watch.request_progress().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    assert!(began.elapsed() >= timeout);
    etcd.shutdown().await;
}

#[tokio::test]
async fn a_watch_that_has_ended_tells_no_progress_and_says_why() {
    let (server, _) = server(|_, mut tx, mut rx, _| async move {
        while let Some(request) = request(&mut rx).await {
            if let RequestUnion::CreateRequest(create) = request {
                tx.send(&created(create.watch_id, 5)).await.unwrap();
            }
        }
    })
    .await;
    let etcd = connect(&server).await;
    let mut watch = etcd.watch("a").await.unwrap();
    let asked = tokio::spawn(watch.request_progress());
    watch.cancel();
    let ended = asked.await.unwrap().unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::WatchCanceled);
    last_item(&mut watch).await;
    let ended = watch.request_progress().await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::WatchCanceled);
    let other = etcd.watch("a").await.unwrap();
    etcd.shutdown().await;
    let ended = other.request_progress().await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Shutdown);
}
