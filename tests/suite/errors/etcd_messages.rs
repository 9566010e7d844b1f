//! Every answer of etcd's own table, sent by a server: what its caller is told, and whether the request is sent again.

#[path = "../../../src/error/tests/etcd_errors.rs"]
mod etcd_errors;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ErrorKind, Outcome, error::Code, proto, retry::NoRetry};
use prost::Message;
use testbed::{Call, Reply, ScriptedServer};

use crate::support::scripted_put::{PUT, RANGE, done};
use etcd_errors::{NAMED, ROWS, Retried};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Which row a request asks for: its key says.
fn row_of(call: &Call) -> usize {
    // The first field of both requests is the key.
    let request = proto::PutRequest::decode(call.body.clone()).unwrap();
    let key = String::from_utf8(request.key.to_vec()).unwrap();
    key.parse().unwrap()
}

fn answer_of(call: &Call) -> Reply {
    let (code, message, ..) = ROWS[row_of(call)];
    Reply::status(code as u32, message)
}

fn found() -> Reply {
    Reply::message(&proto::RangeResponse {
        header: Some(proto::ResponseHeader::default()),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_caller_is_told_the_kind_and_the_outcome_of_every_answer() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| answer_of(&call));
    server.on(RANGE, |call| answer_of(&call));
    let etcd = Client::builder([server.endpoint()])
        .retry(NoRetry)
        .connect()
        .await
        .unwrap();
    assert!(ROWS.len() > NAMED);
    for (n, &(code, message, kind, outcome, _)) in ROWS.iter().enumerate() {
        let written = etcd.put(n.to_string(), "v").await.unwrap_err();
        assert_eq!(
            (written.kind(), written.outcome(), written.code()),
            (kind, outcome, Some(code)),
            "{message}"
        );
        assert_eq!(written.server_message(), Some(message));
        assert_eq!(written.endpoint(), Some(server.endpoint().as_str()));
        let read = etcd.get(n.to_string()).await.unwrap_err();
        assert_eq!(read.kind(), kind, "{message}");
    }
    assert_eq!(server.count(PUT), ROWS.len(), "each was sent once");
}

/// Answers each request with its row the first time, and as it should be from then on.
fn once(then: fn() -> Reply) -> impl Fn(Call) -> Reply + Send + Sync + 'static {
    let asked: Mutex<HashMap<usize, usize>> = Mutex::default();
    move |call| {
        let mut asked = asked.lock().unwrap();
        let times = asked.entry(row_of(&call)).or_default();
        *times += 1;
        if *times == 1 {
            answer_of(&call)
        } else {
            then()
        }
    }
}

#[tokio::test]
async fn what_is_sent_again_is_what_every_answer_allows() {
    // Of two members, so that there is another one to go to; both play the same script.
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    let put = Arc::new(once(done));
    let range = Arc::new(once(found));
    let tokens = Arc::new(AtomicUsize::new(0));
    for server in &servers {
        let (put, range) = (put.clone(), range.clone());
        let tokens = tokens.clone();
        server.on(PUT, move |call| put(call));
        server.on(RANGE, move |call| range(call));
        // No two are the same, whoever gives them.
        server.on(AUTHENTICATE, move |_| {
            Reply::message(&proto::AuthenticateResponse {
                header: Some(proto::ResponseHeader::default()),
                token: format!("token {}", tokens.fetch_add(1, Ordering::SeqCst)),
            })
        });
    }
    let etcd = Client::builder(servers.iter().map(ScriptedServer::endpoint))
        .credentials("root", "secret")
        .request_timeout(Duration::from_secs(20))
        .connect()
        .await
        .unwrap();
    let sent = |path: &str| {
        servers
            .iter()
            .map(|server| server.count(path))
            .sum::<usize>()
    };
    for (n, &(_, message, kind, outcome, again)) in ROWS.iter().enumerate() {
        let before = (sent(PUT), sent(RANGE));
        let written = etcd.put(n.to_string(), "v").await.map(drop);
        let read = etcd.get(n.to_string()).await.map(drop);
        let times = (sent(PUT) - before.0, sent(RANGE) - before.1);
        let told = |error: actix_etcd::Error| (error.kind(), error.outcome());
        let (write_again, read_again) = match again {
            Retried::Never => (false, false),
            Retried::Reads => (false, true),
            Retried::Always | Retried::WithToken => (true, true),
        };
        let expected = |again| if again { Ok(()) } else { Err((kind, outcome)) };
        assert_eq!(
            (written.map_err(told), read.map_err(told)),
            (expected(write_again), expected(read_again)),
            "{message}"
        );
        assert_eq!(
            times,
            (1 + usize::from(write_again), 1 + usize::from(read_again)),
            "a write and a read after {message:?}"
        );
        assert_ne!(outcome, Outcome::NotSent, "no server can say so");
    }
}
