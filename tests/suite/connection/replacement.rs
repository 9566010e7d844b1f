//! Connections that take no more requests, or lead where they should not: left, without harm to what is under way.

use std::{sync::Arc, time::Duration};

use actix_etcd::{
    Client, ConnectivityState, ErrorKind, Outcome, Pinned,
    proto::{
        self,
        health::{HealthCheckResponse, health_check_response::ServingStatus},
    },
};
use testbed::{Reply, STATUS, ScriptedServer};
use tokio::sync::Notify;

use crate::support::wait::{until, until_async};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const HEALTH: &str = "/grpc.health.v1.Health/Watch";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";

fn header(cluster_id: u64) -> proto::ResponseHeader {
    proto::ResponseHeader {
        cluster_id,
        ..Default::default()
    }
}

fn put_in(cluster: u64) -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(header(cluster)),
        ..Default::default()
    })
}

fn range() -> Reply {
    Reply::message(&proto::RangeResponse {
        header: Some(header(1)),
        ..Default::default()
    })
}

fn health(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

/// A member whose health can be watched, as etcd's can: that stream outlives a GOAWAY.
async fn healthy() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(HEALTH, |_| {
        Reply::streaming(async |mut sender, _| {
            let _ = sender.send(&health(ServingStatus::Serving)).await;
            sender.closed().await;
        })
    });
    server
}

#[tokio::test]
async fn a_member_that_says_goodbye_is_dialled_again_and_finishes_what_it_has() {
    let server = healthy().await;
    server.on(PUT, |call| {
        let delay = if call.nth == 0 { 1500 } else { 0 };
        put_in(1).after(Duration::from_millis(delay))
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let slow = tokio::spawn(etcd.put("slow", "1").into_future());
    until("the slow one is there", || server.count(PUT) == 1).await;
    server.go_away_gracefully();
    until_async("requests go over a new connection", async || {
        etcd.put("next", "2").await.unwrap();
        let puts = server.calls(PUT);
        puts.last().unwrap().connection != puts[0].connection
    })
    .await;
    assert!(!slow.is_finished());
    slow.await.unwrap().expect("what was under way is answered");
    until("the old connection is closed", || server.connections() == 1).await;
}

#[tokio::test]
async fn a_member_of_another_cluster_that_tells_so_late_is_left() {
    let (ours, theirs) = (healthy().await, healthy().await);
    // Neither says who it is before it is asked for something: it may not (authentication).
    for server in [&ours, &theirs] {
        server.on(STATUS, |_| {
            Reply::status(7, "etcdserver: permission denied")
        });
    }
    ours.on(PUT, |_| put_in(1));
    theirs.on(PUT, |_| put_in(2));
    let etcd = Client::connect([ours.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    etcd.set_endpoints([ours.endpoint(), theirs.endpoint()])
        .await
        .unwrap();
    until("the stranger is taken for a member", || {
        etcd.connectivity()[1].state == ConnectivityState::Ready
    })
    .await;
    let mut told = 0;
    while told == 0 {
        if let Err(error) = etcd.put("k", "v").await {
            assert_eq!(error.kind(), ErrorKind::ClusterChanged);
            assert_eq!(error.outcome(), Outcome::Unknown);
            told += 1;
        }
    }
    until("the stranger is left, with the reason", || {
        let status = etcd.connectivity().remove(1);
        let reason = status.last_error.map(|error| error.kind());
        status.state != ConnectivityState::Ready && reason == Some(ErrorKind::ClusterChanged)
    })
    .await;
}

#[tokio::test]
async fn a_read_leaves_a_member_that_stops_serving_while_it_waits() {
    let (busy, free) = (ScriptedServer::start().await, healthy().await);
    let asked = Arc::new(Notify::new());
    let seen = asked.clone();
    busy.on(HEALTH, move |_| {
        let seen = seen.clone();
        Reply::streaming(async move |mut sender, _| {
            let _ = sender.send(&health(ServingStatus::Serving)).await;
            seen.notified().await;
            let _ = sender.send(&health(ServingStatus::NotServing)).await;
            sender.closed().await;
        })
    });
    busy.on(RANGE, move |_| {
        asked.notify_one();
        Reply::hang()
    });
    free.on(RANGE, |_| range());
    let etcd = Client::connect([busy.endpoint(), free.endpoint()])
        .await
        .unwrap();
    until("both are there", || {
        let statuses = etcd.connectivity();
        statuses
            .iter()
            .all(|one| one.state == ConnectivityState::Ready)
    })
    .await;
    for _ in 0..2 {
        etcd.get("k").await.unwrap();
    }
    assert_eq!((busy.count(RANGE), free.count(RANGE)), (1, 2));
}

#[tokio::test]
async fn a_member_whose_health_is_not_told_any_more_is_used_again() {
    let server = ScriptedServer::start().await;
    let enough = Arc::new(Notify::new());
    let heard = enough.clone();
    server.on(HEALTH, move |_| {
        let heard = heard.clone();
        Reply::streaming(async move |mut sender, _| {
            let _ = sender.send(&health(ServingStatus::NotServing)).await;
            heard.notified().await;
            sender.status(0, "");
        })
    });
    server.on(PUT, |_| put_in(1));
    let etcd = Client::builder([server.endpoint()])
        .connect_lazy()
        .await
        .unwrap();
    until("it is not used", || {
        etcd.connectivity()[0].state == ConnectivityState::NoLeader
    })
    .await;
    enough.notify_one();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.accepted(), 1, "on the same connection");
}

#[tokio::test]
async fn addresses_that_do_not_answer_never_replace_the_one_that_does() {
    let server = healthy().await;
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
    server.on(PUT, |_| put_in(1));
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
async fn when_every_listed_member_is_gone_the_given_endpoint_is_used_again() {
    let (seed, member) = (healthy().await, healthy().await);
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
        server.on(PUT, |_| put_in(1));
    }
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [member.endpoint()]);
    etcd.put("k", "v").await.unwrap();
    assert_eq!((seed.count(PUT), member.count(PUT)), (0, 1));
    member.close_connections();
    drop(member);
    until("its member is gone", || {
        etcd.connectivity()[0].state != ConnectivityState::Ready
    })
    .await;
    etcd.put("k", "v")
        .timeout(Duration::from_secs(20))
        .await
        .unwrap();
    assert_eq!(seed.count(PUT), 1);
}
