//! Every error of etcd's own table, sent by a scripted server: the error that the caller receives, and whether the
//! request is retried.

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

use crate::support::{
    auth_cluster::{AUTHENTICATE, login_reply},
    scripted_put::{PUT, RANGE, put_reply, range_reply},
};
use etcd_errors::{NAMED, ROWS, Retried};

/// Returns the index of the row that the key of a request names.
fn row_of(call: &Call) -> usize {
    // The first field of both requests is the key.
    let request = proto::PutRequest::decode(call.body.clone()).unwrap();
    let key = String::from_utf8(request.key.to_vec()).unwrap();
    key.parse().unwrap()
}

fn error_reply(call: &Call) -> Reply {
    let (code, message, ..) = ROWS[row_of(call)];
    Reply::status(code as u32, message)
}

#[tokio::test]
async fn error_kinds_and_outcomes_match_table() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| error_reply(&call));
    server.on(RANGE, |call| error_reply(&call));
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
    assert_eq!(server.count(PUT), ROWS.len(), "each put must be sent once");
}

/// Replies to the first request of each row with the error of the row, and to later requests with `success`.
fn fail_once(success: fn() -> Reply) -> impl Fn(Call) -> Reply + Send + Sync + 'static {
    let requests: Mutex<HashMap<usize, usize>> = Mutex::default();
    move |call| {
        let mut requests = requests.lock().unwrap();
        let count = requests.entry(row_of(&call)).or_default();
        *count += 1;
        if *count == 1 {
            error_reply(&call)
        } else {
            success()
        }
    }
}

#[tokio::test]
async fn retries_match_table() {
    // Two members with the same script, so that a retry can go to another member.
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    let put = Arc::new(fail_once(put_reply));
    let range = Arc::new(fail_once(range_reply));
    let tokens = Arc::new(AtomicUsize::new(0));
    for server in &servers {
        let (put, range) = (put.clone(), range.clone());
        let tokens = tokens.clone();
        server.on(PUT, move |call| put(call));
        server.on(RANGE, move |call| range(call));
        // Tokens differ, also between the servers.
        server.on(AUTHENTICATE, move |_| {
            login_reply(&format!("token {}", tokens.fetch_add(1, Ordering::SeqCst)))
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
    for (n, &(_, message, kind, outcome, retried)) in ROWS.iter().enumerate() {
        let before = (sent(PUT), sent(RANGE));
        let written = etcd.put(n.to_string(), "v").await.map(drop);
        let read = etcd.get(n.to_string()).await.map(drop);
        let attempts = (sent(PUT) - before.0, sent(RANGE) - before.1);
        let kind_and_outcome = |error: actix_etcd::Error| (error.kind(), error.outcome());
        let (write_retried, read_retried) = match retried {
            Retried::Never => (false, false),
            Retried::Reads => (false, true),
            Retried::Always | Retried::WithToken => (true, true),
        };
        let expected = |retried| {
            if retried {
                Ok(())
            } else {
                Err((kind, outcome))
            }
        };
        assert_eq!(
            (
                written.map_err(kind_and_outcome),
                read.map_err(kind_and_outcome)
            ),
            (expected(write_retried), expected(read_retried)),
            "{message}"
        );
        assert_eq!(
            attempts,
            (
                1 + usize::from(write_retried),
                1 + usize::from(read_retried)
            ),
            "attempts of a put and a get after {message:?}"
        );
        assert_ne!(
            outcome,
            Outcome::NotSent,
            "a server that replied received the request"
        );
    }
}
