//! HTTP/2 as servers and proxies use it: flow control, stream limits, GOAWAY, HTTP errors.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, Outcome, WatchEvent,
    balancer::ConnectivityState,
    proto::{
        self, SnapshotRequest, maintenance_client::MaintenanceClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
};
use testbed::{Cluster, GoAway, Reply, ScriptedServer};
use tokio::time::{Instant, timeout};

use crate::support::{
    connected_cluster::StartWithClient,
    quiet_window::ready_members,
    scripted_put::{PUT, put_reply, put_with_script},
    wait::{TEST_TIMEOUT, hold, until},
};

const HEALTH: &str = "/grpc.health.v1.Health/Watch";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";

/// Longest time of a call that nothing delays, on a busy machine.
const PROMPT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn unread_responses_delay_no_other_request() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for n in 0..6 {
        let value = vec![n; 1 << 20];
        etcd.put(format!("large/{n}"), value).await.unwrap();
    }
    let mut watch = etcd.watch("k").await.unwrap();
    let lease = etcd.lease(Duration::from_secs(60)).await.unwrap();
    // Each unread snapshot of more than 6 MiB fills the window of its stream.
    let mut unread = Vec::new();
    for _ in 0..30 {
        let mut maintenance = MaintenanceClient::new(etcd.grpc());
        let snapshot = maintenance.snapshot(SnapshotRequest::default()).await;
        unread.push(snapshot.unwrap().into_inner());
    }
    for n in 0..10 {
        let started = Instant::now();
        etcd.put("k", n.to_string()).await.unwrap();
        etcd.keep_alive_once(lease.id()).await.unwrap();
        let event = timeout(TEST_TIMEOUT, watch.next()).await.unwrap();
        assert!(matches!(event, Some(WatchEvent::Events(_))));
        assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    }
    // The unread responses are complete when they are read.
    let mut last = unread.pop().unwrap();
    let mut size = 0;
    while let Some(chunk) = last.message().await.unwrap() {
        size += chunk.blob.len();
    }
    assert!(size > 6 << 20, "{size}");
}

#[tokio::test]
async fn unread_small_messages_keep_the_connection() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply());
    let progress = proto::WatchResponse {
        header: Some(proto::ResponseHeader::default()),
        watch_id: 7,
        ..Default::default()
    };
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = sent.clone();
    server.on_headers(WATCH, move |_| {
        let (progress, counter) = (progress.clone(), counter.clone());
        Reply::streaming(async move |mut sender, _| {
            // Ends when the window of the stream is full.
            for _ in 0..60_000 {
                if sender.send(&progress).await.is_err() {
                    return;
                }
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            sender.closed().await;
        })
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..6 {
        let (_requests, pending) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(pending);
        let opened = WatchClient::new(etcd.grpc()).watch(requests).await;
        unread.push((opened.unwrap(), _requests));
    }
    until("the messages have been sent", || {
        sent.load(std::sync::atomic::Ordering::Relaxed) == 6 * 60_000
    })
    .await;
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.accepted(), 1, "the connection must be kept");
}

#[tokio::test]
async fn full_connection_is_not_picked() {
    let (full, free) = (ScriptedServer::start().await, ScriptedServer::start().await);
    full.set_max_concurrent_streams(2);
    full.on(PUT, |_| Reply::hang());
    free.on(PUT, |_| put_reply());
    let etcd = Client::connect([full.endpoint(), free.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    let put = || etcd.put("k", "v").timeout(Duration::from_secs(60));
    // One of two goes to the member that does not respond, and occupies it.
    let occupying = [put(), put()].map(|put| tokio::spawn(put.into_future()));
    until("the connection is full", || full.count(PUT) == 1).await;
    let started = Instant::now();
    for _ in 0..10 {
        put().await.unwrap();
    }
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    assert_eq!(full.count(PUT), 1);
    for call in occupying {
        call.abort();
    }
}

#[tokio::test]
async fn small_stream_limits_leave_calls_usable() {
    for (limit, watches, leases) in [(1, false, false), (2, true, false), (3, true, true)] {
        let flag = format!("--max-concurrent-streams={limit}");
        let cluster = Cluster::builder().members(1).arg(flag).start().await;
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        let watch = etcd.watch("k/1").await;
        match &watch {
            Ok(_) => assert!(watches, "limit {limit}"),
            Err(error) => {
                assert!(!watches, "limit {limit}: {error}");
                let text = error.to_string();
                assert!(text.contains("limit the concurrent streams"), "{text}");
            }
        }
        if leases {
            let lease = etcd
                .lease(Duration::from_secs(2))
                .keep_alive()
                .await
                .unwrap();
            // Longer than the lease lasts without keepalives.
            hold(Duration::from_secs(4)).await;
            let left = etcd.time_to_live(lease.id()).await.unwrap();
            assert!(left.remaining.is_some(), "the lease must be kept: {left:?}");
        }
        let puts: Vec<_> = (0..40)
            .map(|n| tokio::spawn(etcd.put(format!("k/{n}"), "v").into_future()))
            .collect();
        for put in puts {
            put.await.unwrap().unwrap();
        }
        if let Ok(mut watch) = watch {
            let event = timeout(TEST_TIMEOUT, watch.next()).await.unwrap();
            assert!(matches!(event, Some(WatchEvent::Events(_))));
        }
        let status = etcd.connectivity().remove(0);
        assert_eq!(status.state, ConnectivityState::Ready, "limit {limit}");
    }
}

#[tokio::test]
async fn watch_goes_to_member_with_free_stream() {
    let (single, other) = (ScriptedServer::start().await, ScriptedServer::start().await);
    single.set_max_concurrent_streams(1);
    for server in [&single, &other] {
        server.on(PUT, |_| put_reply());
        server.on_headers(WATCH, |_| {
            Reply::streaming(async |mut sender, mut receiver| {
                while let Some(request) = receiver.recv_message::<proto::WatchRequest>().await {
                    let Some(RequestUnion::CreateRequest(create)) = request.request_union else {
                        continue;
                    };
                    let created = proto::WatchResponse {
                        header: Some(proto::ResponseHeader::default()),
                        created: true,
                        watch_id: create.watch_id,
                        ..Default::default()
                    };
                    let _ = sender.send(&created).await;
                }
            })
        });
    }
    let etcd = Client::connect([single.endpoint(), other.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    let mut watches = Vec::new();
    for n in 0..4 {
        watches.push(etcd.watch(format!("k/{n}")).await.unwrap());
    }
    assert_eq!(single.count(WATCH), 0);
    assert_eq!(single.count(HEALTH), 0, "no stream for the health service");
}

#[tokio::test]
async fn idle_connection_is_replaced_after_goaway() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply());
    server.on(HEALTH, |_| {
        Reply::streaming(async |mut sender, _| sender.closed().await)
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    until("the health stream is open", || server.count(HEALTH) == 1).await;
    server.go_away_gracefully();
    until("the client has connected again", || server.accepted() == 2).await;
    until("the member is ready", || ready_members(&etcd) == 1).await;
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.calls(PUT)[0].connection, 1);
}

#[tokio::test]
async fn requests_above_goaway_are_sent_again() {
    let server = ScriptedServer::start().await;
    // The first connection processes no request.
    server.on(PUT, |call| match call.connection {
        0 => Reply::go_away(GoAway::LastId(0)),
        _ => put_reply(),
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let puts: Vec<_> = (0..100)
        .map(|n| tokio::spawn(etcd.put(format!("k/{n}"), "v").into_future()))
        .collect();
    for put in puts {
        put.await.unwrap().unwrap();
    }
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn http_errors_of_proxies_end_writes_unknown() {
    for (status, kind) in [
        (429, ErrorKind::ServerUnavailable),
        (502, ErrorKind::ServerUnavailable),
        (503, ErrorKind::ServerUnavailable),
        (504, ErrorKind::ServerUnavailable),
        (403, ErrorKind::Protocol),
        (404, ErrorKind::Protocol),
    ] {
        let (result, sent) = put_with_script(move |_| Reply::http_status(status)).await;
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (kind, Outcome::Unknown));
        assert!(error.to_string().contains(&status.to_string()), "{error}");
        assert_eq!(sent.len(), 1, "{status}");
    }
}

#[tokio::test]
async fn members_without_header_are_accepted() {
    let server = ScriptedServer::start().await;
    server.on(MEMBERS, |_| {
        Reply::message(&proto::MemberListResponse {
            header: None,
            members: vec![proto::Member {
                name: "behind a proxy".to_owned(),
                ..Default::default()
            }],
        })
    });
    server.on(PUT, |_| Reply::message(&proto::PutResponse::default()));
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let found = etcd.cluster().list().await.unwrap();
    assert_eq!(found.members[0].name, "behind a proxy");
    assert_eq!(found.header, proto::ResponseHeader::default());
    // The revision of a write must not be made up.
    let error = etcd.put("k", "v").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
}
