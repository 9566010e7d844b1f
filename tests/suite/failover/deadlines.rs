//! Deadlines: how long calls wait, and the errors after that.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    balancer::ConnectivityState,
    proto,
    retry::{FailedAttempt, RetryDecision, RetryPolicy, RpcClass},
};
use testbed::{Cluster, Greeting, Reply, ScriptedServer};

use crate::support::{
    lease_server::GRANT,
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE, range_reply},
    wait::{hold, until, until_async},
};

const HASH: &str = "/etcdserverpb.Maintenance/HashKV";

#[tokio::test]
async fn named_member_call_waits_for_slow_response() {
    let server = ScriptedServer::start().await;
    server.on(HASH, |_| {
        let response = proto::HashKvResponse {
            header: Some(proto::ResponseHeader::default()),
            ..Default::default()
        };
        Reply::message(&response).after(Duration::from_millis(1500))
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let hash = etcd.maintenance().hash_kv(0).at(server.endpoint());
    hash.await.unwrap();
    assert_eq!(server.count(HASH), 1);
}

#[tokio::test]
async fn partially_received_response_is_awaited() {
    let (first, second) = (ScriptedServer::start().await, ScriptedServer::start().await);
    for server in [&first, &second] {
        server.on(RANGE, |_| {
            Reply::streaming(async |mut sender, _| {
                let response = proto::RangeResponse {
                    header: Some(proto::ResponseHeader::default()),
                    ..Default::default()
                };
                let framed = testbed::framed(&prost::Message::encode_to_vec(&response));
                let _ = sender.send_raw(framed.slice(..3)).await;
                tokio::time::sleep(Duration::from_millis(1500)).await;
                let _ = sender.send_raw(framed.slice(3..)).await;
                sender.status(0, "");
            })
        });
    }
    let etcd = Client::connect([first.endpoint(), second.endpoint()])
        .await
        .unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    etcd.get("k").await.unwrap();
    assert_eq!(first.count(RANGE) + second.count(RANGE), 1);
}

#[tokio::test]
async fn response_without_status_fails_at_once() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| {
        Reply::streaming(async |mut sender, _| {
            let _ = sender
                .send(&proto::PutResponse {
                    header: Some(proto::ResponseHeader::default()),
                    ..Default::default()
                })
                .await;
            sender.end_without_status();
        })
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let error = etcd.put("k", "v").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Protocol, Outcome::Unknown)
    );
}

#[tokio::test]
async fn zero_and_maximum_timeouts_are_honoured() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |_| range_reply());
    let etcd = Client::builder([server.endpoint()])
        .request_timeout(Duration::MAX)
        .connect_timeout(Duration::MAX)
        .auto_sync(Duration::MAX)
        .connect()
        .await
        .unwrap();
    let error = etcd.get("k").timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::DeadlineExceeded, Outcome::NotSent)
    );
    assert_eq!(server.count(RANGE), 0);
    etcd.get("k").await.unwrap();
    etcd.get("k").timeout(Duration::MAX).await.unwrap();
    etcd.wait_ready(Duration::MAX).await.unwrap();
}

#[tokio::test]
async fn shutdown_reports_unknown_outcome_of_earlier_attempt() {
    let server = ScriptedServer::start().await;
    server.on(GRANT, |_| Reply::reset_connection());
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    server.set_greeting(Greeting::Close);
    let granting = tokio::spawn(etcd.lease(Duration::from_secs(10)).into_future());
    until("the server has received the grant", || {
        server.count(GRANT) == 1
    })
    .await;
    until("the connection is lost", || {
        etcd.connectivity()[0].state != ConnectivityState::Ready
    })
    .await;
    etcd.shutdown().await;
    let error = granting.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome(), error.attempts()),
        (ErrorKind::Shutdown, Outcome::Unknown, 1)
    );
}

#[tokio::test]
async fn server_lock_wait_survives_leader_change() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let ttl = Duration::from_secs(60);
    let (first, second) = (
        etcd.lease(ttl).await.unwrap(),
        etcd.lease(ttl).await.unwrap(),
    );
    let held = etcd.server_locks().lock("l", first.id()).await.unwrap();
    let waiting = etcd.server_locks().lock("l", second.id());
    let waiting = tokio::spawn(waiting.timeout(Duration::from_secs(60)).into_future());
    until_async("the second lock request is queued", async || {
        etcd.get("l/").prefix().await.unwrap().count == 2
    })
    .await;
    let leader = cluster.leader().await;
    cluster.move_leader((leader + 1) % 3).await;
    // Longer than the suspicion delay, the probe and the grace period for a lost leader together.
    hold(Duration::from_millis(1500)).await;
    assert!(!waiting.is_finished());
    etcd.server_locks().unlock(held.key).await.unwrap();
    waiting.await.unwrap().unwrap();
}

/// Records the class of each failed RPC and forbids retries.
#[derive(Debug, Clone, Default)]
struct ClassRecorder(Arc<Mutex<Vec<RpcClass>>>);

impl RetryPolicy for ClassRecorder {
    fn decide(&self, attempt: &FailedAttempt) -> RetryDecision {
        self.0.lock().unwrap().push(attempt.class);
        RetryDecision::Fail
    }
}

#[tokio::test]
async fn unlock_and_proclaim_are_classified_as_mutations() {
    let server = ScriptedServer::start().await;
    let classes = ClassRecorder::default();
    let etcd = Client::builder([server.endpoint()])
        .retry(classes.clone())
        .connect()
        .await
        .unwrap();
    etcd.server_locks().unlock("key").await.unwrap_err();
    let leader = actix_etcd::server_side::election::LeaderKey::default();
    let proclaimed = etcd.server_elections().proclaim(&leader, "v").await;
    proclaimed.unwrap_err();
    assert_eq!(*classes.0.lock().unwrap(), [RpcClass::Mutation; 2]);
}
