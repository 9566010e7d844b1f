//! Streams that many watches share, and how they end.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use actix_etcd::{Client, proto::watch_request::RequestUnion};

use crate::{
    wait::until,
    watch_script::{WATCH, created, request, server},
};

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
