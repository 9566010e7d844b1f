//! What a failure says of its request, and that nobody can forge it.

use std::time::Duration;

use actix_etcd::{
    Client, Error, ErrorKind, Outcome, proto,
    retry::{NoRetry, ServiceConfig},
};
use testbed::{Call, GoAway, Reason, Reply, ScriptedServer};

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
    let (server, client) = scripted(|_| Reply::hang()).await;
    server.set_max_concurrent_streams(3);
    server.close_connections();
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
