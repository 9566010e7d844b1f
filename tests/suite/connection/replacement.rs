//! Replacement of connections that accept no more requests or lead to another cluster. Requests in flight finish.

use std::{sync::Arc, time::Duration};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    balancer::{ConnectivityState, Pinned},
    proto::{
        self,
        health::{HealthCheckResponse, health_check_response::ServingStatus},
    },
};
use testbed::{Reply, STATUS, ScriptedServer};
use tokio::sync::Notify;

use crate::support::{
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE},
    wait::{until, until_async},
};

const HEALTH: &str = "/grpc.health.v1.Health/Watch";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";

fn header(cluster_id: u64) -> proto::ResponseHeader {
    proto::ResponseHeader {
        cluster_id,
        ..Default::default()
    }
}

fn put_reply_of(cluster: u64) -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(header(cluster)),
        ..Default::default()
    })
}

fn range_reply_of(cluster: u64) -> Reply {
    Reply::message(&proto::RangeResponse {
        header: Some(header(cluster)),
        ..Default::default()
    })
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

/// Starts a member whose health can be watched, like that of etcd. The health stream outlives a GOAWAY.
async fn start_healthy() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(HEALTH, |_| {
        Reply::streaming(async |mut sender, _| {
            let _ = sender.send(&health_response(ServingStatus::Serving)).await;
            sender.closed().await;
        })
    });
    server
}

#[tokio::test]
async fn graceful_goaway_leads_to_new_connection() {
    let server = start_healthy().await;
    server.on(PUT, |call| {
        let delay = if call.nth == 0 { 1500 } else { 0 };
        put_reply_of(1).after(Duration::from_millis(delay))
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let slow = tokio::spawn(etcd.put("slow", "1").into_future());
    until("the slow request has arrived", || server.count(PUT) == 1).await;
    server.go_away_gracefully();
    until_async("requests go over a new connection", async || {
        etcd.put("next", "2").await.unwrap();
        let puts = server.calls(PUT);
        puts.last().unwrap().connection != puts[0].connection
    })
    .await;
    assert!(!slow.is_finished());
    slow.await.unwrap().expect("the request in flight succeeds");
    until("the old connection is closed", || server.connections() == 1).await;
}

#[tokio::test]
async fn foreign_member_is_dropped_after_first_response() {
    let (ours, theirs) = (start_healthy().await, start_healthy().await);
    // With authentication, the probe may be denied: the cluster id is unknown until the first response.
    for server in [&ours, &theirs] {
        server.on(STATUS, |_| {
            Reply::status(7, "etcdserver: permission denied")
        });
    }
    ours.on(PUT, |_| put_reply_of(1));
    theirs.on(PUT, |_| put_reply_of(2));
    let etcd = Client::connect([ours.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    etcd.set_endpoints([ours.endpoint(), theirs.endpoint()])
        .await
        .unwrap();
    until("the foreign member is ready", || {
        etcd.connectivity()[1].state == ConnectivityState::Ready
    })
    .await;
    let mut failures = 0;
    while failures == 0 {
        if let Err(error) = etcd.put("k", "v").await {
            assert_eq!(error.kind(), ErrorKind::ClusterChanged);
            assert_eq!(error.outcome(), Outcome::Unknown);
            failures += 1;
        }
    }
    until("the foreign member is dropped for this reason", || {
        let status = etcd.connectivity().remove(1);
        let reason = status.last_error.map(|error| error.kind());
        status.state != ConnectivityState::Ready && reason == Some(ErrorKind::ClusterChanged)
    })
    .await;
}

#[tokio::test]
async fn waiting_read_leaves_member_that_stops_serving() {
    let (stopping, serving) = (ScriptedServer::start().await, start_healthy().await);
    let read_arrived = Arc::new(Notify::new());
    let read_signal = read_arrived.clone();
    stopping.on(HEALTH, move |_| {
        let read_signal = read_signal.clone();
        Reply::streaming(async move |mut sender, _| {
            let _ = sender.send(&health_response(ServingStatus::Serving)).await;
            read_signal.notified().await;
            let _ = sender
                .send(&health_response(ServingStatus::NotServing))
                .await;
            sender.closed().await;
        })
    });
    stopping.on(RANGE, move |_| {
        read_arrived.notify_one();
        Reply::hang()
    });
    serving.on(RANGE, |_| range_reply_of(1));
    let etcd = Client::connect([stopping.endpoint(), serving.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    for _ in 0..2 {
        etcd.get("k").await.unwrap();
    }
    assert_eq!((stopping.count(RANGE), serving.count(RANGE)), (1, 2));
}

#[tokio::test]
async fn member_is_used_after_health_stream_ends() {
    let server = ScriptedServer::start().await;
    let end_stream = Arc::new(Notify::new());
    let end_signal = end_stream.clone();
    server.on(HEALTH, move |_| {
        let end_signal = end_signal.clone();
        Reply::streaming(async move |mut sender, _| {
            let _ = sender
                .send(&health_response(ServingStatus::NotServing))
                .await;
            end_signal.notified().await;
            sender.status(0, "");
        })
    });
    server.on(PUT, |_| put_reply_of(1));
    let etcd = Client::builder([server.endpoint()])
        .connect_lazy()
        .await
        .unwrap();
    until("the member is not serving", || {
        etcd.connectivity()[0].state == ConnectivityState::NoLeader
    })
    .await;
    end_stream.notify_one();
    etcd.put("k", "v").await.unwrap();
    let put = &server.calls(PUT)[0];
    assert_eq!(put.connection, 0, "the connection must be kept");
}

#[tokio::test]
async fn unreachable_members_are_not_adopted() {
    let server = start_healthy().await;
    server.on(MEMBERS, |_| {
        Reply::message(&proto::MemberListResponse {
            header: Some(header(1)),
            members: vec![proto::Member {
                name: "behind a load balancer".to_owned(),
                client_ur_ls: vec!["http://127.0.0.1:1".to_owned()],
                ..Default::default()
            }],
        })
    });
    server.on(PUT, |_| put_reply_of(1));
    for policy in [Pinned::cold(), Pinned::warm()] {
        let etcd = Client::builder([server.endpoint()])
            .balance(policy)
            .connect()
            .await
            .unwrap();
        assert_eq!(etcd.sync().await.unwrap(), [server.endpoint()]);
        etcd.put("k", "v").await.unwrap();
    }
}

#[tokio::test]
async fn configured_endpoint_is_used_when_members_are_gone() {
    let (seed, member) = (start_healthy().await, start_healthy().await);
    let listed = member.endpoint();
    seed.on(MEMBERS, move |_| {
        Reply::message(&proto::MemberListResponse {
            header: Some(header(1)),
            members: vec![proto::Member {
                name: "a".to_owned(),
                client_ur_ls: vec![listed.clone()],
                ..Default::default()
            }],
        })
    });
    for server in [&seed, &member] {
        server.on(PUT, |_| put_reply_of(1));
    }
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [member.endpoint()]);
    etcd.put("k", "v").await.unwrap();
    assert_eq!((seed.count(PUT), member.count(PUT)), (0, 1));
    member.close_connections();
    drop(member);
    until("the member is not ready", || {
        etcd.connectivity()[0].state != ConnectivityState::Ready
    })
    .await;
    etcd.put("k", "v")
        .timeout(Duration::from_secs(20))
        .await
        .unwrap();
    assert_eq!(seed.count(PUT), 1);
}
