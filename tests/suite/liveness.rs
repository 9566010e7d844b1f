//! A member that is there and of no use: what waits on it does not wait for long, and what comes goes elsewhere.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ConnectivityState, ErrorKind, Outcome, proto};
use testbed::{Reply, STATUS, ScriptedServer, StatusResponse};

use crate::{
    told::{PUT, done},
    wait::until,
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
    let all_ready = || (0..2).all(|index| state(index) == ConnectivityState::Ready);
    until("both are ready", all_ready).await;
    serve.send_replace(2);
    until("it is avoided", || state(0) != ConnectivityState::Ready).await;
    let before = tired.count(PUT);
    for _ in 0..10 {
        etcd.put("k", "v").await.unwrap();
    }
    assert_eq!(tired.count(PUT), before);
    serve.send_replace(1);
    until("it is back", all_ready).await;
}
