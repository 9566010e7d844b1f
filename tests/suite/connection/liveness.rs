//! Members that are reachable but cannot serve: requests in flight end early, and new requests go to other members.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ErrorKind, Outcome, balancer::ConnectivityState, proto};
use serde_json::json;
use testbed::{Cluster, Direction, Fault, Reply, STATUS, ScriptedServer, StatusResponse, number};

use crate::support::{
    quiet_window::ready_members,
    scripted_put::{PUT, put_reply},
    traffic::{Readers, Writers, check_applied_at_most_once},
    wait::{hold, until, until_async},
};

#[tokio::test]
async fn write_under_lost_leader_ends_unknown() {
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
    assert!(!put.is_finished(), "a slow write alone must not fail");
    term.store(6, Ordering::Relaxed);
    let error = put.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::LeaderLost, Outcome::Unknown)
    );
}

#[tokio::test]
async fn write_lost_with_leader_ends_before_server_timeout() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.member((leader + 1) % 3);
    let etcd = Client::builder([follower.endpoint()])
        .request_timeout(Duration::from_secs(60))
        .connect()
        .await
        .unwrap();
    // The follower sends to the leader over the connection that the leader opened. Only this direction is cut.
    let cut = Fault::HalfOpen(Direction::ToClient);
    cluster.peer_link(leader, follower.index()).set(cut);
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
    // etcd itself would report a timeout after 7 s. A probe may coincide with the election.
    let detected = [ErrorKind::LeaderLost, ErrorKind::NoLeader];
    assert!(detected.contains(&error.kind()), "{error}");
    assert_eq!(error.server_message(), None, "{error}");
    etcd.put("k", "w").await.unwrap();
}

#[tokio::test]
async fn isolated_member_is_avoided_until_it_recovers() {
    // An isolated member trusts its last leader for at least ten seconds.
    let builder = Cluster::builder().members(3).election(100, 10_000);
    let cluster = builder.start().await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    let isolated = (cluster.leader().await + 1) % 3;
    let writers = Writers::start(&etcd, 4, "cut-off/");
    let readers = Readers::start(&etcd, 2, "read");
    writers.wait_for_writes(20).await;
    cluster.isolate(isolated);
    let status_of_isolated = || etcd.connectivity().remove(isolated);
    // A busy machine may also lose the connection. After that, the member is avoided because it has not caught up.
    until("the isolated member is avoided", || {
        let status = status_of_isolated();
        let reason = status.last_error.map(|error| error.to_string());
        let is_behind =
            |reason: String| reason.contains("cut off") || reason.contains("not caught up");
        status.state == ConnectivityState::NoLeader && reason.is_some_and(is_behind)
    })
    .await;
    let status = cluster.api(isolated, "/v3/maintenance/status", json!({}));
    let leader: u64 = number(&status.await.unwrap()["leader"]);
    assert_ne!(leader, 0, "the isolated member must still report a leader");
    writers.wait_for_writes(100).await;
    cluster.heal();
    until("the member is used again", || {
        status_of_isolated().state == ConnectivityState::Ready
    })
    .await;
    let writes = writers.finish().await;
    let read_errors = readers.finish().await;
    assert!(read_errors.is_empty(), "a read failed: {}", read_errors[0]);
    for error in writes
        .iter()
        .filter_map(|write| write.result.as_ref().err())
    {
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    }
    check_applied_at_most_once(&cluster, "cut-off/", &writes).await;
}

/// Starts a member with this raft index. A member with index zero is frozen.
async fn start_member(id: u64, index: &Arc<AtomicU64>) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    let current_index = index.clone();
    server.on(STATUS, move |_| {
        match current_index.load(Ordering::Relaxed) {
            0 => Reply::hang(),
            raft_index => {
                let mut healthy = StatusResponse::healthy();
                healthy.raft_index = raft_index;
                if let Some(header) = &mut healthy.header {
                    header.member_id = id;
                }
                Reply::message(&healthy)
            }
        }
    });
    let current_index = index.clone();
    server.on(PUT, move |_| match current_index.load(Ordering::Relaxed) {
        0 => Reply::hang(),
        _ => put_reply(),
    });
    server
}

#[tokio::test]
async fn lagging_member_gets_no_requests() {
    let index = || Arc::new(AtomicU64::new(100));
    let (lagging_index, up_to_date_index) = (index(), index());
    let (lagging, up_to_date) = (
        start_member(1, &lagging_index).await,
        start_member(2, &up_to_date_index).await,
    );
    let etcd = Client::connect([lagging.endpoint(), up_to_date.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    lagging_index.store(0, Ordering::Relaxed);
    until_async("the frozen member is avoided", async || {
        let _ = etcd.put("k", "v").await;
        ready_members(&etcd) == 1
    })
    .await;
    // The index is higher than that of the other member before the freeze, and lower than its index now.
    up_to_date_index.store(200, Ordering::Relaxed);
    lagging_index.store(150, Ordering::Relaxed);
    let probes = lagging.count(STATUS);
    let puts = lagging.count(PUT);
    until_async("the lagging member is probed", async || {
        etcd.put("k", "v").await.unwrap();
        lagging.count(STATUS) > probes + 5
    })
    .await;
    assert_eq!(
        lagging.count(PUT),
        puts,
        "the lagging member must get no request"
    );
    // A new connection does not make up for the missing entries.
    let accepted = lagging.accepted();
    lagging.reset_connections();
    until_async(
        "the lagging member is probed on a new connection",
        async || {
            etcd.put("k", "v").await.unwrap();
            lagging.accepted() > accepted && lagging.count(STATUS) > probes + 10
        },
    )
    .await;
    assert_eq!(
        lagging.count(PUT),
        puts,
        "the lagging member must get no request on a new connection"
    );
    lagging_index.store(200, Ordering::Relaxed);
    until("both members are ready again", || ready_members(&etcd) == 2).await;
}

#[tokio::test]
async fn not_serving_member_gets_no_requests() {
    let (changing, serving) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let (status_sender, status_receiver) = tokio::sync::watch::channel(1);
    changing.on("/grpc.health.v1.Health/Watch", move |_| {
        let mut statuses = status_receiver.clone();
        Reply::streaming(move |mut sender, _| async move {
            loop {
                let status = *statuses.borrow_and_update();
                let response = proto::health::HealthCheckResponse { status };
                if sender.send(&response).await.is_err() || statuses.changed().await.is_err() {
                    return;
                }
            }
        })
    });
    for server in [&changing, &serving] {
        server.on(PUT, |_| put_reply());
    }
    let etcd = Client::connect([changing.endpoint(), serving.endpoint()])
        .await
        .unwrap();
    let state = |index: usize| etcd.connectivity()[index].state;
    until("both members are ready", || ready_members(&etcd) == 2).await;
    status_sender.send_replace(2);
    until("the member is avoided", || {
        state(0) != ConnectivityState::Ready
    })
    .await;
    let before = changing.count(PUT);
    for _ in 0..10 {
        etcd.put("k", "v").await.unwrap();
    }
    assert_eq!(changing.count(PUT), before);
    status_sender.send_replace(1);
    until("both members are ready again", || ready_members(&etcd) == 2).await;
}

/// The first response of a member that was frozen takes long. That must not delay how fast the client leaves the member
/// when it freezes again.
#[tokio::test]
async fn member_that_freezes_again_is_left_at_once() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::builder(cluster.endpoints())
        .connect_timeout(Duration::from_secs(30))
        .connect()
        .await
        .unwrap();
    until("all members are ready", || ready_members(&etcd) == 3).await;
    let link = cluster.member(0).client_link().clone();
    let accepted = link.accepted();
    link.set(Fault::Freeze);
    until_async("a call leaves the frozen member", async || {
        let _ = etcd.put("k", "v").await;
        ready_members(&etcd) == 2
    })
    .await;
    until("the frozen member is dialled", || {
        link.accepted() > accepted
    })
    .await;
    hold(Duration::from_millis(1500)).await;
    link.heal();
    until("all members are ready", || ready_members(&etcd) == 3).await;
    link.set(Fault::Freeze);
    let mut failures = Vec::new();
    while ready_members(&etcd) == 3 || failures.is_empty() {
        failures.extend(etcd.put("k", "v").await.err());
    }
    for error in failures {
        assert_eq!(error.kind(), ErrorKind::MemberUnresponsive, "{error}");
    }
}
