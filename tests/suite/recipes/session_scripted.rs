//! Sessions on a scripted server, for responses that etcd sends only in rare races.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    lease::LeaseLost,
    proto::{
        KeyValue, PutResponse, RangeResponse, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
        response_op::Response,
    },
    recipes::session::{Session, SessionEvent},
};
use prost::Message;
use testbed::Reply;
use tokio::{sync::Notify, time::timeout};
use tokio_stream::{Stream, StreamExt};

use crate::support::{
    lease_server::{GRANT, KeepaliveResponse, LeaseServer, grant_response, respond_when_notified},
    scripted_put::PUT,
    store_server::TXN,
    wait::{TEST_TIMEOUT, until},
};

/// Long enough that no keepalive is sent during a test.
const TTL: Duration = Duration::from_secs(600);

/// Returns a server that accepts puts, a client, and a self-healing session with these keys.
async fn session(keys: &[&'static str]) -> (LeaseServer, Client, Session) {
    let request_timeout = Duration::from_secs(5);
    session_with(request_timeout, keys).await
}

async fn session_with(
    request_timeout: Duration,
    keys: &[&'static str],
) -> (LeaseServer, Client, Session) {
    let lease_server = LeaseServer::start().await;
    lease_server.server.on(PUT, |_| {
        Reply::message(&PutResponse {
            header: Some(header()),
            ..Default::default()
        })
    });
    let builder = Client::builder([lease_server.server.endpoint()]);
    let connecting = builder.request_timeout(request_timeout).connect();
    let etcd = connecting.await.unwrap();
    let session = etcd.session(TTL).heal().await.unwrap();
    for key in keys {
        session.put(*key, "mine").await.unwrap();
    }
    (lease_server, etcd, session)
}

fn header() -> ResponseHeader {
    ResponseHeader {
        revision: 7,
        ..Default::default()
    }
}

fn txn_reply(succeeded: bool) -> Reply {
    Reply::message(&TxnResponse {
        header: Some(header()),
        succeeded,
        ..Default::default()
    })
}

/// Returns the reply to a transaction that finds the key bound to `lease`.
fn key_exists(key: Vec<u8>, lease: i64) -> Reply {
    keys_found(vec![(key, lease)], 1)
}

/// Returns the reply to a rejected transaction that reads `count` keys and finds the first ones, bound to leases.
fn keys_found(found: Vec<(Vec<u8>, i64)>, count: usize) -> Reply {
    let mut found = found.into_iter();
    let responses = (0..count).map(|_| {
        let kvs = found.next().map(|(key, lease)| KeyValue {
            key: key.into(),
            mod_revision: 5,
            lease,
            ..Default::default()
        });
        let range = RangeResponse {
            header: Some(header()),
            kvs: kvs.into_iter().collect(),
            ..Default::default()
        };
        ResponseOp {
            response: Some(Response::ResponseRange(range)),
        }
    });
    Reply::message(&TxnResponse {
        header: Some(header()),
        succeeded: false,
        responses: responses.collect(),
    })
}

fn key_of(call: &testbed::Call) -> Vec<u8> {
    let txn = TxnRequest::decode(call.body.clone()).unwrap();
    txn.compare[0].key.to_vec()
}

/// Ends the session's lease on the server, and makes the client notice.
async fn end_lease(lease_server: &LeaseServer, etcd: &Client, session: &Session) {
    let lease = session.lease().unwrap();
    lease_server.set_response(lease, KeepaliveResponse::Ttl(0));
    let _ = etcd.keep_alive_once(lease).await;
}

/// Ends the session's lease, and makes every attempt to heal fail.
async fn end_lease_and_block_healing(lease_server: &LeaseServer, etcd: &Client, session: &Session) {
    lease_server
        .server
        .on(GRANT, |_| Reply::status(2, "not now"));
    let before = lease_server.server.count(GRANT);
    end_lease(lease_server, etcd, session).await;
    until("several attempts to heal have failed", || {
        lease_server.server.count(GRANT) > before + 2
    })
    .await;
}

/// Waits until the session is healed. Returns the keys that it lost to other owners.
async fn wait_until_healed(
    events: &mut (impl Stream<Item = SessionEvent> + Unpin),
) -> Vec<bytes::Bytes> {
    let healed = timeout(TEST_TIMEOUT, async {
        loop {
            let event = events.next().await.expect("the session is not lost");
            if let SessionEvent::Healed { taken, .. } = event {
                return taken;
            }
        }
    });
    healed.await.expect("the session heals in time")
}

#[tokio::test]
async fn key_lost_during_takeover_is_put_again() {
    let (lease_server, etcd, session) = session(&["a"]).await;
    let mut events = session.events();
    let former = session.lease().unwrap();
    lease_server.server.on(TXN, move |call| match call.nth {
        0 => key_exists(key_of(&call), former),
        // The former lease has ended in the meantime.
        1 => keys_found(Vec::new(), 1),
        _ => txn_reply(true),
    });
    end_lease(&lease_server, &etcd, &session).await;
    assert!(wait_until_healed(&mut events).await.is_empty());
    assert_eq!(lease_server.server.count(TXN), 3);
}

#[tokio::test]
async fn taken_key_is_reported_after_failed_attempt() {
    let (lease_server, etcd, session) = session(&["a", "b"]).await;
    let mut events = session.events();
    let failures = AtomicUsize::new(0);
    lease_server.server.on(TXN, move |call| {
        let txn = TxnRequest::decode(call.body.clone()).unwrap();
        // The first key has another owner. The second key fails with the first key and alone.
        if txn.compare[0].key == "a" {
            keys_found(vec![(key_of(&call), 4711)], txn.compare.len())
        } else if failures.fetch_add(1, Ordering::SeqCst) < 2 {
            Reply::status(2, "not now")
        } else {
            txn_reply(true)
        }
    });
    end_lease(&lease_server, &etcd, &session).await;
    assert_eq!(wait_until_healed(&mut events).await, ["a"]);
    let failed = timeout(TEST_TIMEOUT, events.next()).await.unwrap();
    let Some(SessionEvent::KeysNotRestored(keys)) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(keys.len(), 1);
    assert!(keys[0].key == "b" && keys[0].reason.contains("not now"));
    let restored = timeout(TEST_TIMEOUT, events.next()).await.unwrap();
    let expected = SessionEvent::KeysRestored {
        keys: vec!["b".into()],
        taken: Vec::new(),
    };
    assert_eq!(restored, Some(expected));
}

#[tokio::test]
async fn refused_key_is_found_by_splitting_batches() {
    const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (lease_server, etcd, session) = session(&KEYS).await;
    let mut events = session.events();
    lease_server.server.on(TXN, |call| {
        let txn = TxnRequest::decode(call.body).unwrap();
        if txn.compare.iter().any(|compare| compare.key == "f") {
            Reply::status(3, "etcdserver: request is too large")
        } else {
            txn_reply(true)
        }
    });
    end_lease(&lease_server, &etcd, &session).await;
    assert!(wait_until_healed(&mut events).await.is_empty());
    let unrestored = session.unrestored_keys();
    assert_eq!(unrestored.len(), 1, "{unrestored:?}");
    assert_eq!(unrestored[0].key, "f");
    assert_eq!(unrestored[0].kind, ErrorKind::RequestTooLarge);
    // Halves of 8 keys, down to one key.
    assert!(lease_server.server.count(TXN) <= 7 + 1);
}

#[tokio::test]
async fn failed_delete_keeps_the_session_key() {
    let (lease_server, _etcd, session) = session(&["a"]).await;
    lease_server.server.on(TXN, |call| match call.nth {
        0 => Reply::status(2, "not now"),
        _ => txn_reply(true),
    });
    session.delete("a").await.unwrap_err();
    assert!(session.delete("a").await.unwrap());
    assert!(
        !session.delete("a").await.unwrap(),
        "the key was deleted twice"
    );
}

#[tokio::test]
async fn requests_during_healing_end_at_their_deadline() {
    let (lease_server, etcd, session) = session_with(Duration::from_secs(1), &["a"]).await;
    end_lease_and_block_healing(&lease_server, &etcd, &session).await;
    for failed in [
        timeout(TEST_TIMEOUT, session.put("b", "1"))
            .await
            .map(|put| put.map(drop)),
        timeout(TEST_TIMEOUT, session.delete("a"))
            .await
            .map(|deleted| deleted.map(drop)),
    ] {
        let error = failed.expect("the request ends").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert_eq!(error.outcome(), Outcome::NotSent);
    }
}

#[tokio::test]
async fn shutdown_ends_session_during_healing() {
    let (lease_server, etcd, session) = session(&["a"]).await;
    let mut events = session.events();
    end_lease_and_block_healing(&lease_server, &etcd, &session).await;
    etcd.shutdown().await;
    let lost = timeout(TEST_TIMEOUT, session.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::Shutdown));
    let mut last = None;
    while let Ok(event) = timeout(Duration::ZERO, events.next()).await {
        last = event;
    }
    assert_eq!(last, Some(SessionEvent::Lost(LeaseLost::Shutdown)));
}

#[tokio::test]
async fn session_dropped_during_grant_leaves_no_lease() {
    let (lease_server, etcd, session) = session(&["a"]).await;
    let mut events = session.events();
    let release = Arc::new(Notify::new());
    let (new_lease, released) = (Arc::new(Mutex::new(0)), release.clone());
    let granted_lease = new_lease.clone();
    lease_server.server.on(GRANT, move |call| {
        let response = grant_response(&call);
        *granted_lease.lock().unwrap() = response.id;
        respond_when_notified(response, &released)
    });
    let before = lease_server.server.count(GRANT);
    end_lease(&lease_server, &etcd, &session).await;
    until("a lease is requested", || {
        lease_server.server.count(GRANT) > before
    })
    .await;
    drop(session);
    // The events end with the actor of the session, before the response arrives.
    let ended = timeout(TEST_TIMEOUT, async {
        while events.next().await.is_some() {}
    });
    ended.await.unwrap();
    release.notify_one();
    let new_lease = *new_lease.lock().unwrap();
    until("the new lease is revoked", || {
        lease_server.revoked().contains(&new_lease)
    })
    .await;
}
