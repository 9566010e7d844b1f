//! A member that is there and of no use: what waits on it does not wait for long, and what comes goes elsewhere.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ConnectivityState, ErrorKind, Outcome, proto};
use serde_json::json;
use testbed::{Cluster, Direction, Fault, Reply, STATUS, ScriptedServer, StatusResponse, number};

use crate::support::{
    quiet_window::ready_members,
    scripted_put::{PUT, done},
    traffic::{Readers, Writers, check_applied_at_most_once},
    wait::{until, until_async},
};

#[tokio::test]
async fn a_write_under_a_leader_that_is_gone_ends_as_unknown() {
    let server = ScriptedServer::start().await;
    let term = Arc::new(AtomicU64::new(5));
    let current = term.clone();
    server.on(STATUS, move |_| {
        Reply::message(&StatusResponse {
            raft_term: current.load(Ordering::Relaxed),
            ..StatusResponse::healthy()
        })
    });
    server.on(PUT, |_| Reply::hang());
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_secs(60))
        .connect()
        .await
        .unwrap();
    let put = tokio::spawn(etcd.put("k", "v").into_future());
    until("the member is probed", || server.count(STATUS) >= 3).await;
    assert!(
        !put.is_finished(),
        "a slow write alone is no reason to give up"
    );
    term.store(6, Ordering::Relaxed);
    let error = put.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::LeaderLost, Outcome::Unknown)
    );
}

#[tokio::test]
async fn a_write_that_its_follower_lost_with_the_leader_ends_as_unknown_before_the_server_says_so()
{
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.member((leader + 1) % 3);
    let etcd = Client::builder([follower.endpoint()])
        .request_timeout(Duration::from_secs(60))
        .connect()
        .await
        .unwrap();
    // What the follower tells the leader goes over the connection that the leader dialled. It hears all it should.
    let unheard = Fault::HalfOpen(Direction::ToClient);
    cluster.peer_link(leader, follower.index()).set(unheard);
    let put = tokio::spawn(etcd.put("k", "v").into_future());
    until_async("the follower has the write", async || {
        let started = r#"grpc_server_started_total{grpc_method="Put"}"#;
        follower.metric(started).await >= Some(1.0)
    })
    .await;
    assert!(!put.is_finished());
    cluster.member(leader).kill();
    let error = put.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    // etcd itself would answer after 7 s that it timed out. A look may fall into the election.
    let found_out = [ErrorKind::LeaderLost, ErrorKind::NoLeader];
    assert!(found_out.contains(&error.kind()), "{error}");
    assert_eq!(error.server_message(), None, "{error}");
    etcd.put("k", "w").await.unwrap();
}

#[tokio::test]
async fn a_member_cut_off_is_left_before_it_knows_and_taken_back_when_it_moves() {
    // It believes in its leader for ten seconds and more.
    let builder = Cluster::builder().members(3).election(100, 10_000);
    let cluster = builder.start().await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    let cut_off = (cluster.leader().await + 1) % 3;
    let writers = Writers::start(&etcd, 4, "cut-off/");
    let readers = Readers::start(&etcd, 2, "read");
    writers.wait_for_writes(20).await;
    cluster.isolate(cut_off);
    let seen = || etcd.connectivity().remove(cut_off);
    until("it is left", || seen().state != ConnectivityState::Ready).await;
    let why = seen().last_error.unwrap().to_string();
    assert!(why.contains("cut off"), "{why}");
    let status = cluster.api(cut_off, "/v3/maintenance/status", json!({}));
    let leader: u64 = number(&status.await.unwrap()["leader"]);
    assert_ne!(leader, 0, "it does not know yet");
    writers.wait_for_writes(100).await;
    cluster.heal();
    until("it is taken back", || {
        seen().state == ConnectivityState::Ready
    })
    .await;
    let writes = writers.finish().await;
    let unread = readers.finish().await;
    assert!(unread.is_empty(), "a read failed: {}", unread[0]);
    for error in writes
        .iter()
        .filter_map(|write| write.result.as_ref().err())
    {
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    }
    check_applied_at_most_once(&cluster, "cut-off/", &writes).await;
}

/// A member that knows the history up to an index. At zero it is frozen.
async fn member(id: u64, index: &Arc<AtomicU64>) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    let status = index.clone();
    server.on(STATUS, move |_| match status.load(Ordering::Relaxed) {
        0 => Reply::hang(),
        raft_index => {
            let mut healthy = StatusResponse::healthy();
            healthy.raft_index = raft_index;
            if let Some(header) = &mut healthy.header {
                header.member_id = id;
            }
            Reply::message(&healthy)
        }
    });
    let status = index.clone();
    server.on(PUT, move |_| match status.load(Ordering::Relaxed) {
        0 => Reply::hang(),
        _ => done(),
    });
    server
}

#[tokio::test]
async fn a_member_that_wakes_up_gets_no_requests_before_it_has_what_it_missed() {
    let index = || Arc::new(AtomicU64::new(100));
    let (slept, stayed) = (index(), index());
    let (sleeper, awake) = (member(1, &slept).await, member(2, &stayed).await);
    let etcd = Client::connect([sleeper.endpoint(), awake.endpoint()])
        .await
        .unwrap();
    until("both are ready", || ready_members(&etcd) == 2).await;
    slept.store(0, Ordering::Relaxed);
    until_async("it is left", async || {
        let _ = etcd.put("k", "v").await;
        ready_members(&etcd) == 1
    })
    .await;
    // It has more than the other had when it fell asleep, and less than the other has now.
    stayed.store(200, Ordering::Relaxed);
    slept.store(150, Ordering::Relaxed);
    let looks = sleeper.count(STATUS);
    let asked = sleeper.count(PUT);
    until_async("it was looked at", async || {
        etcd.put("k", "v").await.unwrap();
        sleeper.count(STATUS) > looks + 5
    })
    .await;
    assert_eq!(sleeper.count(PUT), asked, "it was trusted too early");
    // Another connection does not make it any better.
    let accepted = sleeper.accepted();
    sleeper.reset_connections();
    until_async("it was looked at again", async || {
        etcd.put("k", "v").await.unwrap();
        sleeper.accepted() > accepted && sleeper.count(STATUS) > looks + 10
    })
    .await;
    assert_eq!(
        sleeper.count(PUT),
        asked,
        "it was trusted for a new connection"
    );
    slept.store(200, Ordering::Relaxed);
    until("it is taken back", || ready_members(&etcd) == 2).await;
}

#[tokio::test]
async fn a_member_that_reports_not_serving_gets_no_requests() {
    let (tired, awake) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let (serve, told) = tokio::sync::watch::channel(1);
    tired.on("/grpc.health.v1.Health/Watch", move |_| {
        let mut told = told.clone();
        Reply::streaming(move |mut sender, _| async move {
            loop {
                let status = *told.borrow_and_update();
                let answer = proto::health::HealthCheckResponse { status };
                if sender.send(&answer).await.is_err() || told.changed().await.is_err() {
                    return;
                }
            }
        })
    });
    for server in [&tired, &awake] {
        server.on(PUT, |_| done());
    }
    let etcd = Client::connect([tired.endpoint(), awake.endpoint()])
        .await
        .unwrap();
    let state = |index: usize| etcd.connectivity()[index].state;
    until("both are ready", || ready_members(&etcd) == 2).await;
    serve.send_replace(2);
    until("it is avoided", || state(0) != ConnectivityState::Ready).await;
    let before = tired.count(PUT);
    for _ in 0..10 {
        etcd.put("k", "v").await.unwrap();
    }
    assert_eq!(tired.count(PUT), before);
    serve.send_replace(1);
    until("it is back", || ready_members(&etcd) == 2).await;
}
