//! What a failure says of its request, and that nobody can forge it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ConnectivityState, Error, ErrorKind, Outcome, proto,
    retry::{NoRetry, ServiceConfig},
};
use prost::Message;
use testbed::{
    Call, Fault, GoAway, Reason, Reply, STATUS, ScriptedServer, StatusResponse, TcpBehind,
};

use crate::wait::until;

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";

async fn scripted(
    script: impl Fn(Call) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, Client) {
    let server = ScriptedServer::start().await;
    server.on(PUT, script);
    let client = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    (server, client)
}

fn done() -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(proto::ResponseHeader::default()),
        ..Default::default()
    })
}

/// What a put is told, and how often it was sent.
async fn told(
    script: impl Fn(Call) -> Reply + Send + Sync + 'static,
) -> (Result<(), Error>, usize) {
    let (server, client) = scripted(script).await;
    let result = client.put("k", "v").await.map(drop);
    (result, server.count(PUT))
}

#[tokio::test]
async fn what_the_protocol_promises_was_not_processed_is_sent_again() {
    let scripts: [fn(Call) -> Reply; 2] = [
        |call| {
            if call.nth == 0 {
                Reply::refuse_stream()
            } else {
                done()
            }
        },
        |call| {
            if call.nth == 0 {
                Reply::go_away(GoAway::ExcludeThis)
            } else {
                done()
            }
        },
    ];
    for script in scripts {
        let (result, sent) = told(script).await;
        result.unwrap();
        assert_eq!(sent, 2);
    }
}

#[tokio::test]
async fn what_may_have_been_processed_is_sent_once_and_told_at_once() {
    let scripts: [(&str, fn(Call) -> Reply); 6] = [
        ("closed", |_| Reply::close_connection()),
        ("reset", |_| Reply::reset_connection()),
        ("stream reset", |_| Reply::reset(Reason::INTERNAL_ERROR)),
        ("cancelled", |_| Reply::reset(Reason::CANCEL)),
        ("answered, then refused", |_| {
            Reply::headers_then_reset(Reason::REFUSED_STREAM)
        }),
        ("in progress at goaway", |_| {
            Reply::close_connection().after_go_away(GoAway::IncludeThis)
        }),
    ];
    for (name, script) in scripts {
        let (result, sent) = told(script).await;
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::ConnectionLost, Outcome::Unknown),
            "{name}"
        );
        assert_eq!(sent, 1, "{name}");
    }
}

#[tokio::test]
async fn no_words_of_a_server_can_forge_not_sent() {
    let words = [
        "there is no address available",
        "there is no connection available",
        "connection refused",
        "not sent",
        "transport: Error while dialing",
        "REFUSED_STREAM",
    ];
    for code in 1..=16 {
        for text in words {
            let (result, _) = told(move |_| Reply::status(code, text)).await;
            assert_ne!(
                result.unwrap_err().outcome(),
                Outcome::NotSent,
                "{code} {text}"
            );
        }
    }
}

#[tokio::test]
async fn a_write_refused_for_a_passing_reason_is_sent_again() {
    for text in [
        "etcdserver: no leader",
        "etcdserver: too many requests",
        "raft proposal dropped",
    ] {
        let (result, sent) = told(move |call| {
            if call.nth < 2 {
                Reply::status(14, text)
            } else {
                done()
            }
        })
        .await;
        result.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(sent, 3, "{text}");
    }
}

#[tokio::test]
async fn a_learner_sends_the_write_to_another_member() {
    let (learner, voter) = (ScriptedServer::start().await, ScriptedServer::start().await);
    learner.on(PUT, |_| {
        Reply::status(9, "etcdserver: rpc not supported for learner")
    });
    voter.on(PUT, |_| done());
    let client = Client::connect([learner.endpoint(), voter.endpoint()])
        .await
        .unwrap();
    for _ in 0..10 {
        client.put("k", "v").await.unwrap();
    }
    assert_eq!(voter.count(PUT), 10);
}

#[tokio::test]
async fn a_write_that_timed_out_on_the_server_is_never_sent_again() {
    for text in [
        "etcdserver: request timed out",
        "etcdserver: request timed out, possibly due to previous leader failure",
        "etcdserver: request timed out, possibly due to connection lost",
        "etcdserver: server stopped",
        "context deadline exceeded",
        "something new",
    ] {
        let (result, sent) = told(move |_| Reply::status(14, text)).await;
        assert_eq!(
            (result.unwrap_err().outcome(), sent),
            (Outcome::Unknown, 1),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_read_is_sent_again_for_all_of_these() {
    let scripts: [fn(Call) -> Reply; 7] = [
        |_| Reply::close_connection(),
        |_| Reply::reset(Reason::INTERNAL_ERROR),
        |_| Reply::status(14, "etcdserver: request timed out"),
        |_| Reply::status(14, "etcdserver: leader changed"),
        |_| Reply::status(14, "etcdserver: no leader"),
        |_| Reply::status(14, "something new"),
        |_| Reply::hang(),
    ];
    for script in scripts {
        let server = ScriptedServer::start().await;
        server.on(RANGE, move |call| match call.nth {
            0 | 1 => script(call),
            _ => Reply::message(&proto::RangeResponse {
                header: Some(proto::ResponseHeader::default()),
                ..Default::default()
            }),
        });
        let client = Client::connect([server.endpoint()]).await.unwrap();
        client.get("k").await.unwrap();
        assert_eq!(server.count(RANGE), 3);
    }
}

#[tokio::test]
async fn a_deadline_says_whether_the_request_was_under_way() {
    let (_server, client) = scripted(|_| Reply::hang()).await;
    let error = client
        .put("k", "v")
        .timeout(Duration::from_millis(100))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::DeadlineExceeded, Outcome::Unknown)
    );
    let error = client
        .put("k", "v")
        .timeout(Duration::from_millis(600))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::DeadlineExceeded, Outcome::Unknown)
    );
}

#[tokio::test]
async fn streams_that_could_not_be_opened_were_not_sent() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::hang());
    server.set_max_concurrent_streams(11);
    let client = Client::connect([server.endpoint()]).await.unwrap();
    let calls: Vec<_> = (0..10)
        .map(|n| {
            tokio::spawn(
                client
                    .put(format!("k{n}"), "v")
                    .timeout(Duration::from_millis(700))
                    .into_future(),
            )
        })
        .collect();
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(call.await.unwrap().unwrap_err().outcome());
    }
    let unknown = outcomes
        .iter()
        .filter(|outcome| **outcome == Outcome::Unknown)
        .count();
    assert_eq!(
        unknown,
        server.count(PUT),
        "as many as the server has seen: {outcomes:?}"
    );
    assert!(unknown < 10);
}

#[tokio::test]
async fn a_server_that_asks_for_patience_gets_it() {
    let (result, sent) = told(|call| match call.nth {
        0 => {
            Reply::status(14, "etcdserver: no leader").with_trailer("grpc-retry-pushback-ms", "300")
        }
        _ => done(),
    })
    .await;
    result.unwrap();
    assert_eq!(sent, 2);
    let (result, sent) = told(|_| {
        Reply::status(14, "etcdserver: no leader").with_trailer("grpc-retry-pushback-ms", "-1")
    })
    .await;
    assert_eq!((result.unwrap_err().kind(), sent), (ErrorKind::NoLeader, 1));
}

#[tokio::test]
async fn a_policy_can_forbid_retries_but_not_allow_a_write_twice() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::status(14, "etcdserver: no leader"));
    let never = Client::builder([server.endpoint()])
        .retry(NoRetry)
        .connect()
        .await
        .unwrap();
    assert_eq!(
        never.put("k", "v").await.unwrap_err().kind(),
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
    let eager = Client::builder([server.endpoint()])
        .retry(config)
        .connect()
        .await
        .unwrap();
    assert_eq!(
        eager.put("k", "v").await.unwrap_err().outcome(),
        Outcome::Unknown
    );
    assert_eq!(server.count(PUT), 1);
    server.on(RANGE, |_| Reply::status(14, "unheard of"));
    assert!(eager.get("k").await.is_err());
    assert_eq!(
        server.count(RANGE),
        4,
        "as many attempts as the service config says"
    );
}

#[tokio::test]
async fn what_never_left_a_connection_that_broke_is_sent_by_the_next() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| done());
    let behind = TcpBehind::port(server.address().port());
    let etcd = Client::builder([format!("http://{}", behind.address())])
        .request_timeout(Duration::from_secs(20))
        .connect()
        .await
        .unwrap();
    behind.link().set(Fault::Freeze);
    // Fills what the sockets on the way can hold, so that later requests stay in the client.
    let large: Vec<_> = (0..40)
        .map(|n| {
            tokio::spawn(
                etcd.put(format!("large/{n}"), vec![0; 1 << 20])
                    .into_future(),
            )
        })
        .collect();
    tokio::task::yield_now().await;
    let small: Vec<_> = (0..10)
        .map(|n| tokio::spawn(etcd.put(format!("small/{n}"), "v").into_future()))
        .collect();
    until("the connection is given up", || {
        etcd.connectivity()[0].state != ConnectivityState::Ready
    })
    .await;
    behind.link().heal();
    let mut unknown = 0;
    for call in large.into_iter().chain(small) {
        match call.await.unwrap() {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
                unknown += 1;
            }
        }
    }
    let mut keys: Vec<_> = server
        .calls(PUT)
        .iter()
        .map(|call| proto::PutRequest::decode(call.body.clone()).unwrap().key)
        .collect();
    let sent = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), sent, "none was sent twice");
    assert!(
        sent + unknown >= 50,
        "{sent} arrived, {unknown} are unknown"
    );
}

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
