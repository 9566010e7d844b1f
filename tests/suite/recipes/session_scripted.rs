//! Sessions whose server answers what etcd does only at the wrong moment.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    lease::LostReason,
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
    wait::until,
};

const TXN: &str = "/etcdserverpb.KV/Txn";
/// Its next keepalive is far away.
const TTL: Duration = Duration::from_secs(600);
/// Longer than anything here takes on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

/// A server that takes puts, a client, and a session that heals.
async fn session(keys: &[&'static str]) -> (LeaseServer, Client, Session) {
    let request_timeout = Duration::from_secs(5);
    session_with(request_timeout, keys).await
}

async fn session_with(
    request_timeout: Duration,
    keys: &[&'static str],
) -> (LeaseServer, Client, Session) {
    let lessor = LeaseServer::start().await;
    lessor.server.on("/etcdserverpb.KV/Put", |_| {
        Reply::message(&PutResponse {
            header: Some(header()),
            ..Default::default()
        })
    });
    let builder = Client::builder([lessor.server.endpoint()]);
    let connecting = builder.request_timeout(request_timeout).connect();
    let etcd = connecting.await.unwrap();
    let session = etcd.session(TTL).heal().await.unwrap();
    for key in keys {
        session.put(*key, "mine").await.unwrap();
    }
    (lessor, etcd, session)
}

fn header() -> ResponseHeader {
    ResponseHeader {
        revision: 7,
        ..Default::default()
    }
}

fn succeeded(succeeded: bool) -> Reply {
    Reply::message(&TxnResponse {
        header: Some(header()),
        succeeded,
        ..Default::default()
    })
}

/// The answer that the key is there, bound to that lease.
fn found(key: Vec<u8>, lease: i64) -> Reply {
    let kvs = vec![KeyValue {
        key: key.into(),
        mod_revision: 5,
        lease,
        ..Default::default()
    }];
    let range = RangeResponse {
        header: Some(header()),
        kvs,
        count: 1,
        ..Default::default()
    };
    Reply::message(&TxnResponse {
        header: Some(header()),
        succeeded: false,
        responses: vec![ResponseOp {
            response: Some(Response::ResponseRange(range)),
        }],
    })
}

fn key_of(call: &testbed::Call) -> Vec<u8> {
    let txn = TxnRequest::decode(call.body.clone()).unwrap();
    txn.compare[0].key.to_vec()
}

/// Ends the session's lease on the server, and lets the client find out.
async fn lose(lessor: &LeaseServer, etcd: &Client, session: &Session) {
    let lease = session.lease().unwrap();
    lessor.set_response(lease, KeepaliveResponse::Ttl(0));
    let _ = etcd.keep_alive_once(lease).await;
}

/// Ends the session's lease, and lets no attempt to heal it succeed.
async fn lose_for_ever(lessor: &LeaseServer, etcd: &Client, session: &Session) {
    lessor.server.on(GRANT, |_| Reply::status(2, "not now"));
    let before = lessor.server.count(GRANT);
    lose(lessor, etcd, session).await;
    until("it is healing, and pauses", || {
        lessor.server.count(GRANT) > before + 2
    })
    .await;
}

/// Waits until it is healed; the keys that were taken.
async fn taken(events: &mut (impl Stream<Item = SessionEvent> + Unpin)) -> Vec<bytes::Bytes> {
    let healed = timeout(AT_MOST, async {
        loop {
            let event = events.next().await.expect("a session that is not lost");
            if let SessionEvent::Healed { taken, .. } = event {
                return taken;
            }
        }
    });
    healed.await.expect("it is not healed")
}

#[tokio::test]
async fn a_key_that_goes_with_a_former_lease_while_it_is_taken_over_is_put_again() {
    let (lessor, etcd, session) = session(&["a"]).await;
    let mut events = session.events();
    let former = session.lease().unwrap();
    lessor.server.on(TXN, move |call| match call.nth {
        0 => found(key_of(&call), former),
        // Its lease has ended in between.
        1 => succeeded(false),
        _ => succeeded(true),
    });
    lose(&lessor, &etcd, &session).await;
    assert!(taken(&mut events).await.is_empty());
    assert_eq!(lessor.server.count(TXN), 3);
}

#[tokio::test]
async fn a_taken_key_is_told_though_the_attempt_that_found_it_failed() {
    let (lessor, etcd, session) = session(&["a", "b"]).await;
    let mut events = session.events();
    let first = Arc::new(Mutex::new(None));
    let seen = first.clone();
    lessor.server.on(TXN, move |call| {
        let key = key_of(&call);
        // Whichever comes first is somebody else's; the other one fails for once.
        let first = seen.lock().unwrap().get_or_insert(key.clone()).clone();
        if key == first {
            found(key, 4711)
        } else if call.nth == 1 {
            Reply::status(2, "not now")
        } else {
            succeeded(true)
        }
    });
    lose(&lessor, &etcd, &session).await;
    let first = || first.lock().unwrap().clone().unwrap();
    assert_eq!(taken(&mut events).await, [first()]);
}

#[tokio::test]
async fn a_key_that_could_not_be_deleted_is_still_the_sessions() {
    let (lessor, _etcd, session) = session(&["a"]).await;
    lessor.server.on(TXN, |call| match call.nth {
        0 => Reply::status(2, "not now"),
        _ => succeeded(true),
    });
    session.delete("a").await.unwrap_err();
    assert!(session.delete("a").await.unwrap());
    assert!(!session.delete("a").await.unwrap(), "once");
}

#[tokio::test]
async fn healing_holds_up_nobody_for_longer_than_a_request_takes() {
    let (lessor, etcd, session) = session_with(Duration::from_secs(1), &["a"]).await;
    lose_for_ever(&lessor, &etcd, &session).await;
    for failed in [
        timeout(AT_MOST, session.put("b", "1"))
            .await
            .map(|put| put.map(drop)),
        timeout(AT_MOST, session.delete("a"))
            .await
            .map(|deleted| deleted.map(drop)),
    ] {
        let error = failed.expect("it hangs").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert_eq!(error.outcome(), Outcome::NotSent);
    }
}

#[tokio::test]
async fn a_session_that_is_healing_is_lost_with_its_client() {
    let (lessor, etcd, session) = session(&["a"]).await;
    let mut events = session.events();
    lose_for_ever(&lessor, &etcd, &session).await;
    etcd.shutdown().await;
    let lost = timeout(AT_MOST, session.lost()).await;
    assert_eq!(lost, Ok(LostReason::Shutdown));
    let mut last = None;
    while let Ok(event) = timeout(Duration::ZERO, events.next()).await {
        last = event;
    }
    assert_eq!(last, Some(SessionEvent::Lost(LostReason::Shutdown)));
}

#[tokio::test]
async fn a_session_dropped_while_its_new_lease_is_granted_leaves_none() {
    let (lessor, etcd, session) = session(&["a"]).await;
    let mut events = session.events();
    let arrives = Arc::new(Notify::new());
    let (new, held_up) = (Arc::new(Mutex::new(0)), arrives.clone());
    let noted = new.clone();
    lessor.server.on(GRANT, move |call| {
        let answer = grant_response(&call);
        *noted.lock().unwrap() = answer.id;
        respond_when_notified(answer, &held_up)
    });
    let before = lessor.server.count(GRANT);
    lose(&lessor, &etcd, &session).await;
    until("a lease is granted", || lessor.server.count(GRANT) > before).await;
    drop(session);
    // They end with its actor, which is gone before the answer is there.
    let ended = timeout(AT_MOST, async { while events.next().await.is_some() {} });
    ended.await.unwrap();
    arrives.notify_one();
    let new = *new.lock().unwrap();
    until("it is revoked", || lessor.revoked().contains(&new)).await;
}
