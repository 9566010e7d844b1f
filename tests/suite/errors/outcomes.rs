//! What a broken connection, a deadline or a refusal of HTTP/2 proves of a request, and that nobody can forge it.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ConnectivityState, ErrorKind, Outcome, proto,
    retry::{Attempt, RetryDecision, RetryPolicy, StandardRetry},
};
use prost::Message;
use testbed::{Call, Fault, GoAway, Reason, Reply, ScriptedServer, TcpProxy};

use crate::support::{
    scripted_put::{PUT, done, scripted, told},
    wait::until,
};

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
        assert_eq!(sent.len(), 2);
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
        assert_eq!(sent.len(), 1, "{name}");
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
    let put = |timeout| client.put("k", "v").timeout(timeout).into_future();
    // They take whatever room there is, and keep it.
    let first: Vec<_> = (0..20)
        .map(|_| tokio::spawn(put(Duration::from_secs(60))))
        .collect();
    let mut later = Vec::new();
    until("requests are there", || server.count(PUT) > 0).await;
    for _ in 0..10 {
        later.push(tokio::spawn(put(Duration::from_millis(300))));
    }
    for call in later {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::DeadlineExceeded, Outcome::NotSent)
        );
    }
    assert!(
        server.count(PUT) <= 11,
        "no more than the server allows at once"
    );
    for call in first {
        call.abort();
    }
}

/// The standard policy; counts the attempts that it is told were not sent.
#[derive(Debug, Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl RetryPolicy for Counting {
    fn decide(&self, attempt: &Attempt) -> RetryDecision {
        let not_sent = attempt.outcome == Outcome::NotSent;
        self.0.fetch_add(usize::from(not_sent), Ordering::Relaxed);
        StandardRetry.decide(attempt)
    }
}

/// The bytes in the socket to that port which the other end has not taken: the kernel's own count.
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
async fn what_never_left_a_connection_that_broke_is_sent_by_the_next() {
    // Small requests that come late, on a machine that has no time, find the connection given up already.
    for _ in 0..5 {
        if small_requests_that_never_left_are_sent_again().await {
            return;
        }
    }
    panic!("no small request was ever caught behind the large ones");
}

/// Tells whether some were caught at all.
async fn small_requests_that_never_left_are_sent_again() -> bool {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| done());
    let behind = TcpProxy::to_port(server.address().port());
    let policy = Counting::default();
    let etcd = Client::builder([format!("http://{}", behind.address())])
        .request_timeout(Duration::from_secs(20))
        .retry(policy.clone())
        .connect()
        .await
        .unwrap();
    behind.link().set(Fault::Freeze);
    let put = |key: String, size| tokio::spawn(etcd.put(key, vec![0; size]).into_future());
    let large: Vec<_> = (0..40)
        .map(|n| put(format!("large/{n}"), 1 << 20))
        .collect();
    // What the sockets on the way can hold is full when the kernel takes no more: later requests stay in the client.
    let (last, still) = (Cell::new(0), Cell::new(0));
    until("the sockets are full", || {
        let unsent = unsent_bytes(behind.address().port());
        still.set(if unsent == last.replace(unsent) {
            still.get() + 1
        } else {
            0
        });
        unsent > 0 && still.get() >= 5
    })
    .await;
    let small: Vec<_> = (0..10).map(|n| put(format!("small/{n}"), 1)).collect();
    until("the connection is given up", || {
        etcd.connectivity()[0].state != ConnectivityState::Ready
    })
    .await;
    behind.link().heal();
    let mut done = Vec::new();
    for (n, call) in small.into_iter().enumerate() {
        match call.await.unwrap() {
            Ok(_) => done.push(format!("small/{n}")),
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
    let by_the_next = calls.iter().zip(&arrived).filter(|(call, key)| {
        call.connection > 0 && done.iter().any(|done| done.as_bytes() == key.as_ref())
    });
    let by_the_next = by_the_next.count();
    arrived.sort();
    let sent = arrived.len();
    arrived.dedup();
    assert_eq!(arrived.len(), sent, "none was sent twice");
    let not_sent = policy.0.load(Ordering::Relaxed);
    println!("{not_sent} attempts never left, {by_the_next} small requests came by the next");
    not_sent > 0 && by_the_next > 0
}
