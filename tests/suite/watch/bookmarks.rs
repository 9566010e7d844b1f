//! Positions of watches without events: they move by progress that the client requests by itself.

use std::time::Duration;

use actix_etcd::{Client, Watch, WatchEvent, proto::watch_request::RequestUnion, watch::WatchEnd};
use testbed::{Cluster, GrpcProxy, Link};

use crate::support::{
    connected_cluster::{connect, connect_with},
    wait::until,
    watch_items::{next_item, read_to_end},
    watch_server::{created, next_request, progress, start_watch_server},
};

/// Writes other keys, waits until the watch has a bookmark, compacts the history, and resets the connections of the
/// watch. Then the watch must deliver its next event, and nothing else.
async fn check_quiet_watch(mut watch: Watch, writer: &Client, links: &[&Link]) {
    let mut last = 0;
    for n in 0..50 {
        let put = writer.put("other", n.to_string()).await.unwrap();
        last = put.header.revision;
    }
    until("the watch has a bookmark", || {
        watch.freshness().revision >= last
    })
    .await;
    writer.compact(last).await.unwrap();
    for link in links {
        link.reset_now();
    }
    let written = writer.put("quiet", "v").await.unwrap().header.revision;
    match next_item(&mut watch).await {
        WatchEvent::Events(events) => assert_eq!(events.revision(), written),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn quiet_watch_survives_compaction_of_other_keys() {
    let cluster = Cluster::start(3).await;
    let builder = Client::builder(cluster.member_endpoints());
    let builder = builder.watch_progress_interval(Duration::from_millis(200));
    let etcd = connect_with(builder).await;
    let writer = connect(cluster.direct_endpoints()).await;
    // The option for progress of the server does not deliver the bookmarks either.
    let watch = etcd.watch("quiet").progress_notify().await.unwrap();
    let members = cluster.members();
    let links: Vec<&Link> = members.iter().map(testbed::Member::client_link).collect();
    check_quiet_watch(watch, &writer, &links).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn quiet_watch_survives_compaction_through_grpc_proxy() {
    let interval = Duration::from_millis(200);
    let builder = Cluster::builder().progress_notify_interval(interval);
    let cluster = builder.start().await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = connect([proxy.endpoint()]).await;
    let writer = connect(cluster.direct_endpoints()).await;
    let watch = etcd.watch("quiet").await.unwrap();
    check_quiet_watch(watch, &writer, &[proxy.link()]).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn bookmarks_can_be_disabled() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.member_endpoints()).watch_progress_interval(None);
    let etcd = connect_with(builder).await;
    let mut watch = etcd.watch("quiet").await.unwrap();
    etcd.put("other", "1").await.unwrap();
    let last = etcd.put("other", "2").await.unwrap().header.revision;
    etcd.compact(last).await.unwrap();
    cluster.member(0).client_link().reset_now();
    assert!(matches!(
        read_to_end(&mut watch).await,
        WatchEnd::Compacted { revision } if revision == last
    ));
    etcd.shutdown().await;
}

#[tokio::test]
async fn one_progress_request_serves_all_watches_of_stream() {
    const WATCHES: usize = 100;
    let (server, start_revisions) =
        start_watch_server(|nth, mut tx, mut rx, start_revisions| async move {
            let mut creates = 0;
            while let Some(request) = next_request(&mut rx).await {
                match request {
                    RequestUnion::CreateRequest(create) => {
                        creates += 1;
                        if nth > 0 {
                            start_revisions.lock().unwrap().push(create.start_revision);
                        }
                        tx.send(&created(create.watch_id, 5)).await.unwrap();
                    }
                    RequestUnion::ProgressRequest(_) if creates == WATCHES => {
                        tx.send(&progress(-1, 90)).await.unwrap();
                    }
                    _ => {}
                }
            }
        })
        .await;
    let etcd = Client::builder([server.endpoint()])
        .watch_progress_interval(Duration::from_millis(200))
        .connect()
        .await
        .unwrap();
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        watches.push(etcd.watch("a").await.unwrap());
    }
    // The release of this server is unknown, so its progress counts when events can no longer follow.
    let is_bookmarked = |watch: &Watch| watch.freshness().revision == 90;
    until("all watches have a bookmark", || {
        watches.iter().all(is_bookmarked)
    })
    .await;
    server.reset_connections();
    until("all watches are created again", || {
        start_revisions.lock().unwrap().len() == WATCHES
    })
    .await;
    assert_eq!(*start_revisions.lock().unwrap(), [91; WATCHES]);
    etcd.shutdown().await;
}
