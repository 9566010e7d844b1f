//! Outcomes of requests after a broken connection, a deadline or an HTTP/2 refusal. A server cannot forge them.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    balancer::ConnectivityState,
    proto,
    retry::{FailedAttempt, RetryDecision, RetryPolicy, StandardRetry},
};
use prost::Message;
use testbed::{Call, Fault, GoAway, Reason, Reply, ScriptedServer, TcpProxy};

use crate::support::{
    scripted_put::{PUT, put_reply, put_with_script, start_scripted},
    wait::until,
};

#[tokio::test]
async fn unprocessed_request_is_sent_again() {
    let scripts: [fn(Call) -> Reply; 2] = [
        |call| {
            if call.nth == 0 {
                Reply::refuse_stream()
            } else {
                put_reply()
            }
        },
        |call| {
            if call.nth == 0 {
                Reply::go_away(GoAway::ExcludeThis)
            } else {
                put_reply()
            }
        },
    ];
    for script in scripts {
        let (result, sent) = put_with_script(script).await;
        result.unwrap();
        assert_eq!(sent.len(), 2);
    }
}

#[tokio::test]
async fn possibly_processed_request_is_sent_once() {
    let scripts: [(&str, fn(Call) -> Reply); 6] = [
        ("closed", |_| Reply::close_connection()),
        ("reset", |_| Reply::reset_connection()),
        ("stream reset", |_| Reply::reset(Reason::INTERNAL_ERROR)),
        ("cancelled", |_| Reply::reset(Reason::CANCEL)),
        ("headers, then refused", |_| {
            Reply::headers_then_reset(Reason::REFUSED_STREAM)
        }),
        ("in progress at goaway", |_| {
            Reply::close_connection().after_go_away(GoAway::IncludeThis)
        }),
    ];
    for (name, script) in scripts {
        let (result, sent) = put_with_script(script).await;
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::ConnectionLost, Outcome::Unknown),
            "{name}"
        );
        assert_eq!(sent.len(), 1, "{name}");
    }
}

#[tokio::test]
async fn server_message_cannot_forge_not_sent() {
    let messages = [
        "there is no address available",
        "there is no connection available",
        "connection refused",
        "not sent",
        "transport: Error while dialing",
        "REFUSED_STREAM",
    ];
    for code in 1..=16 {
        for message in messages {
            let (result, _) = put_with_script(move |_| Reply::status(code, message)).await;
            assert_ne!(
                result.unwrap_err().outcome(),
                Outcome::NotSent,
                "{code} {message}"
            );
        }
    }
}

/// gRPC's Go library returns the same text for a request and, in a proxy, for the response of the server behind it.
#[tokio::test]
async fn size_limit_of_response_is_not_a_rejection() {
    let too_large = |size: usize| {
        let message = format!("grpc: received message larger than max ({size} vs. 4)");
        move |_| Reply::status(8, &message)
    };
    let (result, sent) = put_with_script(too_large(5_000_000)).await;
    let error = result.unwrap_err();
    let found = (error.kind(), error.outcome());
    assert_eq!(found, (ErrorKind::ResponseTooLarge, Outcome::Unknown));
    assert_eq!(sent.len(), 1);
    let (result, _) = put_with_script(too_large(sent[0].body.len())).await;
    let error = result.unwrap_err();
    let found = (error.kind(), error.outcome());
    assert_eq!(found, (ErrorKind::RequestTooLarge, Outcome::Rejected));
}

#[tokio::test]
async fn deadline_of_sent_request_ends_unknown() {
    let (_server, client) = start_scripted(|_| Reply::hang()).await;
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
async fn request_without_stream_was_not_sent() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::hang());
    server.set_max_concurrent_streams(11);
    let client = Client::connect([server.endpoint()]).await.unwrap();
    let put = |timeout| client.put("k", "v").timeout(timeout).into_future();
    // These requests occupy all streams that the server allows.
    let occupying: Vec<_> = (0..20)
        .map(|_| tokio::spawn(put(Duration::from_secs(60))))
        .collect();
    let mut waiting = Vec::new();
    until("requests have arrived", || server.count(PUT) > 0).await;
    for _ in 0..10 {
        waiting.push(tokio::spawn(put(Duration::from_millis(300))));
    }
    for call in waiting {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::DeadlineExceeded, Outcome::NotSent)
        );
    }
    assert!(
        server.count(PUT) <= 11,
        "more streams than the server allows"
    );
    for call in occupying {
        call.abort();
    }
}

/// The standard policy, which also counts the attempts that were not sent.
#[derive(Debug, Clone, Default)]
struct NotSentCounter(Arc<AtomicUsize>);

impl RetryPolicy for NotSentCounter {
    fn decide(&self, attempt: &FailedAttempt) -> RetryDecision {
        let not_sent = attempt.outcome == Outcome::NotSent;
        self.0.fetch_add(usize::from(not_sent), Ordering::Relaxed);
        StandardRetry.decide(attempt)
    }
}

/// Returns the number of bytes in the kernel's send queue of the connection to this port.
fn unsent_bytes(port: u16) -> u64 {
    let remote = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let queues = table.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().skip(2);
        (columns.next()? == remote).then(|| columns.nth(1))?
    });
    queues
        .filter_map(|queue| u64::from_str_radix(queue.split(':').next()?, 16).ok())
        .sum()
}

#[tokio::test]
async fn unsent_requests_use_next_connection() {
    // On a busy machine, the small requests may start only after the client has given up the connection.
    for _ in 0..5 {
        if queued_requests_are_sent_again().await {
            return;
        }
    }
    panic!("no small request was ever queued behind the large ones");
}

/// Returns whether at least one small request was queued in the broken connection and succeeded on the next.
async fn queued_requests_are_sent_again() -> bool {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply());
    let proxy = TcpProxy::to_port(server.address().port());
    let policy = NotSentCounter::default();
    let etcd = Client::builder([format!("http://{}", proxy.address())])
        .request_timeout(Duration::from_secs(20))
        .retry(policy.clone())
        .connect()
        .await
        .unwrap();
    proxy.link().set(Fault::Freeze);
    let put = |key: String, size| tokio::spawn(etcd.put(key, vec![0; size]).into_future());
    let large: Vec<_> = (0..40)
        .map(|n| put(format!("large/{n}"), 1 << 20))
        .collect();
    // The socket buffers are full when the send queue stops growing: later requests stay in the client.
    let (last_unsent, unchanged) = (Cell::new(0), Cell::new(0));
    until("the socket buffers are full", || {
        let unsent = unsent_bytes(proxy.address().port());
        unchanged.set(if unsent == last_unsent.replace(unsent) {
            unchanged.get() + 1
        } else {
            0
        });
        unsent > 0 && unchanged.get() >= 5
    })
    .await;
    let small: Vec<_> = (0..10).map(|n| put(format!("small/{n}"), 1)).collect();
    until("the connection is given up", || {
        etcd.connectivity()[0].state != ConnectivityState::Ready
    })
    .await;
    proxy.link().heal();
    let mut succeeded = Vec::new();
    for (n, call) in small.into_iter().enumerate() {
        match call.await.unwrap() {
            Ok(_) => succeeded.push(format!("small/{n}")),
            Err(error) => assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}"),
        }
    }
    for call in large {
        if let Err(error) = call.await.unwrap() {
            assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
        }
    }
    let calls = server.calls(PUT);
    let mut arrived: Vec<_> = calls
        .iter()
        .map(|call| proto::PutRequest::decode(call.body.clone()).unwrap().key)
        .collect();
    let on_next_connection = calls.iter().zip(&arrived).filter(|(call, key)| {
        call.connection > 0
            && succeeded
                .iter()
                .any(|succeeded| succeeded.as_bytes() == key.as_ref())
    });
    let on_next_connection = on_next_connection.count();
    arrived.sort();
    let sent = arrived.len();
    arrived.dedup();
    assert_eq!(arrived.len(), sent, "a request was sent twice");
    let not_sent = policy.0.load(Ordering::Relaxed);
    println!("attempts not sent: {not_sent}, sent on the next connection: {on_next_connection}");
    not_sent > 0 && on_next_connection > 0
}
