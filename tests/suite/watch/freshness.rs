//! Up to which revision a watch is complete, and when that was confirmed.

use std::time::{Duration, Instant};

use actix_etcd::{
    Client, Watch, WatchEvent,
    proto::watch_request::RequestUnion,
    watch::{Freshness, WatchStatus},
};
use testbed::{Cluster, Fault, Reply, ResponseHeader, STATUS, StatusResponse};
use tokio::time::sleep;

use crate::support::{
    connected_cluster::connect_with,
    leg_members::wait_for_legs,
    message_recorder::record_messages,
    wait::{hold, until},
    watch_items::{next_change, next_item},
    watch_server::{created, event, events, next_request, progress, start_watch_server},
    watcher_metrics::wait_for_watchers,
    write_load::put_until_ok,
};

const INTERVAL: Duration = Duration::from_millis(100);

async fn connect(cluster: &Cluster) -> Client {
    let builder = Client::builder(cluster.member_endpoints());
    let builder = builder.watch_progress_interval(INTERVAL);
    connect_with(builder).await
}

/// Waits until the watch is complete up to this revision.
async fn until_complete(watch: &Watch, revision: i64) -> Freshness {
    until("the watch is complete", || {
        watch.freshness().revision >= revision
    })
    .await;
    watch.freshness()
}

#[tokio::test]
async fn quiet_watch_knows_its_revision_time_and_member() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let start = Instant::now();
    let watch = etcd.watch("quiet").await.unwrap();
    assert!(watch.freshness().as_of >= start);
    let other = etcd.put("other", "v").await.unwrap().header.revision;
    let freshness = until_complete(&watch, other).await;
    let WatchStatus::Attached { endpoint, member } = &freshness.status else {
        panic!("{freshness:?}");
    };
    let members = cluster.members();
    let found = members.iter().find(|other| other.endpoint() == *endpoint);
    assert_eq!(found.unwrap().id(), *member);
    until("the confirmation is renewed", || {
        watch.freshness().as_of > freshness.as_of
    })
    .await;
    assert!(watch.freshness().age() <= start.elapsed());
    etcd.shutdown().await;
}

#[tokio::test]
async fn interrupted_watch_reports_start_of_outage() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let watch = etcd.watch("k").await.unwrap();
    let written = put_until_ok(&etcd, "other", "v").await;
    let before = until_complete(&watch, written).await;
    let cut = Instant::now();
    cluster.member(0).client_link().set(Fault::Refuse);
    let reconnecting = |freshness: &Freshness| match freshness.status {
        WatchStatus::Reconnecting { since } => Some(since),
        _ => None,
    };
    until("the watch reconnects", || {
        reconnecting(&watch.freshness()).is_some()
    })
    .await;
    let interrupted = watch.freshness();
    assert!(reconnecting(&interrupted).unwrap() >= cut);
    assert!(interrupted.revision >= before.revision && interrupted.as_of >= before.as_of);
    hold(3 * INTERVAL).await;
    assert_eq!(watch.freshness().as_of, interrupted.as_of);
    cluster.heal();
    until("the watch is confirmed again", || {
        watch.freshness().as_of > interrupted.as_of
    })
    .await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn unread_event_limits_freshness() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let mut watch = etcd.watch("k").await.unwrap();
    let before = watch.freshness();
    let written = etcd.put("k", "v").await.unwrap().header.revision;
    let later = etcd.put("other", "v").await.unwrap().header.revision;
    watch.request_progress().await.unwrap();
    assert_eq!(watch.freshness().revision, before.revision);
    assert_eq!(next_change(&mut watch).await.0, written);
    assert!(watch.freshness().revision >= written);
    until_complete(&watch, later).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn confirmation_is_as_old_as_its_request() {
    const DELAY: Duration = Duration::from_millis(600);
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let mut id = 0;
        while let Some(request) = next_request(&mut rx).await {
            match request {
                RequestUnion::CreateRequest(create) => {
                    id = create.watch_id;
                    tx.send(&created(id, 5)).await.unwrap();
                }
                RequestUnion::ProgressRequest(_) => {
                    sleep(DELAY).await;
                    tx.send(&progress(-1, 90)).await.unwrap();
                    tx.send(&events(id, false, vec![event("a", 95)]))
                        .await
                        .unwrap();
                }
                RequestUnion::CancelRequest(_) => {}
            }
        }
    })
    .await;
    // Probes do not confirm the watch: other keys have later revisions.
    let status = StatusResponse {
        header: Some(ResponseHeader {
            cluster_id: 1,
            member_id: 1,
            revision: 1000,
            ..ResponseHeader::default()
        }),
        ..StatusResponse::healthy()
    };
    server.on(STATUS, move |_| Reply::message(&status));
    let etcd = Client::builder([server.endpoint()])
        .watch_progress_interval(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let watch = etcd.watch("a").await.unwrap();
    let confirmed = until_complete(&watch, 90).await;
    assert_eq!(confirmed.revision, 90, "the event is unread");
    assert!(confirmed.age() >= DELAY, "{:?}", confirmed.age());
    etcd.shutdown().await;
}

#[tokio::test]
async fn freshness_is_reported_at_intervals() {
    let cluster = Cluster::start(1).await;
    // The reports cause the requests for progress.
    let builder = Client::builder(cluster.member_endpoints()).watch_progress_interval(None);
    let etcd = connect_with(builder).await;
    let mut watch = etcd.watch("k").report_freshness(INTERVAL).await.unwrap();
    let written = etcd.put("k", "v").await.unwrap().header.revision;
    let other = etcd.put("other", "v").await.unwrap().header.revision;
    let (mut event_read, mut last) = (false, None);
    while last.is_none_or(|revision| revision < other) {
        match next_item(&mut watch).await {
            WatchEvent::Events(events) => {
                assert_eq!(events.revision(), written);
                event_read = true;
            }
            WatchEvent::Freshness(freshness) => {
                assert!(event_read || freshness.revision < written);
                assert!(last <= Some(freshness.revision));
                last = Some(freshness.revision);
            }
            unexpected => panic!("{unexpected:?}"),
        }
    }
    assert!(event_read);
    cluster.member(0).client_link().set(Fault::Refuse);
    loop {
        if let WatchEvent::Freshness(freshness) = next_item(&mut watch).await
            && matches!(freshness.status, WatchStatus::Reconnecting { .. })
        {
            break;
        }
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn hedged_watch_has_freshness_of_better_leg() {
    let cluster = Cluster::start(3).await;
    let builder = Client::builder(&cluster.member_endpoints()[..2]);
    let builder = builder.watch_progress_interval(INTERVAL);
    let etcd = connect_with(builder).await;
    let open = etcd.watch("k").hedged().report_freshness(INTERVAL);
    let mut watch = open.await.unwrap();
    for leg in wait_for_legs(&cluster, 2).await {
        cluster.member(leg).client_link().set(Fault::Refuse);
        wait_for_watchers(&cluster, 1.0).await;
        let other = put_until_ok(&etcd, "other", "v").await;
        let before = until_complete(&watch, other).await;
        until("the confirmation is renewed", || {
            watch.freshness().as_of > before.as_of
        })
        .await;
        let mut reported = 0;
        while reported < other {
            let WatchEvent::Freshness(freshness) = next_item(&mut watch).await else {
                panic!("the watch has no other items");
            };
            assert!(
                matches!(freshness.status, WatchStatus::Attached { .. }),
                "{freshness:?}"
            );
            reported = freshness.revision;
        }
        cluster.heal();
        wait_for_legs(&cluster, 2).await;
    }
    for member in cluster.members() {
        member.client_link().set(Fault::Refuse);
    }
    until("neither leg is left", || {
        matches!(watch.freshness().status, WatchStatus::Reconnecting { .. })
    })
    .await;
    etcd.shutdown().await;
}

#[actix::test]
async fn actor_receives_freshness_of_its_watch() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let (received, recipient) = record_messages::<WatchEvent>();
    let request = etcd.watch("k").report_freshness(INTERVAL);
    let handle = request.deliver_to(recipient).await.unwrap();
    let other = etcd.put("other", "v").await.unwrap().header.revision;
    until("the actor receives the revision", || {
        received.lock().unwrap().iter().any(|item| match item {
            WatchEvent::Freshness(freshness) => freshness.revision >= other,
            _ => false,
        })
    })
    .await;
    assert!(handle.freshness().revision >= other);
    etcd.shutdown().await;
}
