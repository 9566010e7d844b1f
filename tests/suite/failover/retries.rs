//! Which requests are retried after which failure, and how servers and policies influence retries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    retry::{NoRetry, ServiceConfig},
};
use testbed::{Call, Reason, Reply, ScriptedServer};

use crate::support::{
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE, put_reply, put_with_script, range_reply},
    wait::until,
};

#[tokio::test]
async fn transiently_rejected_write_is_retried() {
    for text in [
        "etcdserver: no leader",
        "etcdserver: too many requests",
        "raft proposal dropped",
    ] {
        let (result, sent) = put_with_script(move |call| {
            if call.nth < 2 {
                Reply::status(14, text)
            } else {
                put_reply()
            }
        })
        .await;
        result.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(sent.len(), 3, "{text}");
    }
}

#[tokio::test]
async fn write_refused_by_learner_moves_to_voter() {
    let (learner, voter) = (ScriptedServer::start().await, ScriptedServer::start().await);
    learner.on(PUT, |_| {
        Reply::status(9, "etcdserver: rpc not supported for learner")
    });
    voter.on(PUT, |_| put_reply());
    let client = Client::connect([learner.endpoint(), voter.endpoint()])
        .await
        .unwrap();
    for _ in 0..10 {
        client.put("k", "v").await.unwrap();
    }
    assert_eq!(voter.count(PUT), 10);
}

#[tokio::test]
async fn write_with_unknown_outcome_is_not_retried() {
    for text in [
        "etcdserver: request timed out",
        "etcdserver: request timed out, possibly due to previous leader failure",
        "etcdserver: request timed out, possibly due to connection lost",
        "etcdserver: server stopped",
        "context deadline exceeded",
        "unrecognized message",
    ] {
        let (result, sent) = put_with_script(move |_| Reply::status(14, text)).await;
        assert_eq!(
            (result.unwrap_err().outcome(), sent.len()),
            (Outcome::Unknown, 1),
            "{text}"
        );
    }
}

#[tokio::test]
async fn read_is_retried_after_every_transient_failure() {
    let scripts: [fn(Call) -> Reply; 6] = [
        |_| Reply::close_connection(),
        |_| Reply::reset(Reason::INTERNAL_ERROR),
        |_| Reply::status(14, "etcdserver: request timed out"),
        |_| Reply::status(14, "etcdserver: leader changed"),
        |_| Reply::status(14, "etcdserver: no leader"),
        |_| Reply::status(14, "unrecognized message"),
    ];
    for script in scripts {
        let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
        let attempts = Arc::new(AtomicUsize::new(0));
        for server in &servers {
            let attempts = attempts.clone();
            server.on(RANGE, move |call| {
                if attempts.fetch_add(1, Ordering::Relaxed) < 2 {
                    return script(call);
                }
                range_reply()
            });
        }
        let client = Client::builder(servers.iter().map(ScriptedServer::endpoint))
            .request_timeout(Duration::from_secs(20))
            .connect()
            .await
            .unwrap();
        until("both members are ready", || ready_members(&client) == 2).await;
        client.get("k").await.unwrap();
        assert_eq!(attempts.load(Ordering::Relaxed), 3);
    }
}

#[tokio::test]
async fn server_pushback_delays_or_stops_retries() {
    let (result, sent) = put_with_script(|call| match call.nth {
        0 => {
            Reply::status(14, "etcdserver: no leader").with_trailer("grpc-retry-pushback-ms", "300")
        }
        _ => put_reply(),
    })
    .await;
    result.unwrap();
    assert_eq!(sent.len(), 2);
    let pause = sent[1].at - sent[0].at;
    assert!(pause >= Duration::from_millis(300), "{pause:?}");
    let (result, sent) = put_with_script(|_| {
        Reply::status(14, "etcdserver: no leader").with_trailer("grpc-retry-pushback-ms", "-1")
    })
    .await;
    assert_eq!(
        (result.unwrap_err().kind(), sent.len()),
        (ErrorKind::NoLeader, 1)
    );
}

#[tokio::test]
async fn policy_may_forbid_but_not_force_write_retries() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::status(14, "etcdserver: no leader"));
    let without_retries = Client::builder([server.endpoint()])
        .retry(NoRetry)
        .connect()
        .await
        .unwrap();
    assert_eq!(
        without_retries.put("k", "v").await.unwrap_err().kind(),
        ErrorKind::NoLeader
    );
    assert_eq!(server.count(PUT), 1);

    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::status(14, "etcdserver: request timed out"));
    let config = ServiceConfig::from_json(
        r#"{"methodConfig":[{"name":[{"service":"etcdserverpb.KV"}],"retryPolicy":{"maxAttempts":4,
            "initialBackoff":"0.01s","maxBackoff":"0.1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}"#,
    )
    .unwrap();
    let with_service_config = Client::builder([server.endpoint()])
        .retry(config)
        .connect()
        .await
        .unwrap();
    assert_eq!(
        with_service_config
            .put("k", "v")
            .await
            .unwrap_err()
            .outcome(),
        Outcome::Unknown
    );
    assert_eq!(server.count(PUT), 1);
    server.on(RANGE, |_| Reply::status(14, "unrecognized message"));
    assert!(with_service_config.get("k").await.is_err());
    assert_eq!(server.count(RANGE), 4, "maxAttempts of the service config");
}
