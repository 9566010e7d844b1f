//! Ordered clients and a scripted server that returns older states.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind,
    kv::{delete, get, put},
    proto::{PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse},
    retry::{BudgetLimits, NoRetry},
};
use prost::Message;
use testbed::{Reply, ScriptedServer};
use tokio::task::JoinSet;

use crate::support::{
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE},
    store_server::TXN,
    wait::until,
    watch_items::next_change,
    watch_server::{created, event, events, header, next_create, start_watch_server},
};

/// The `serializable` flag of the received reads.
type Flags = Arc<Mutex<Vec<bool>>>;

/// Answers reads with these revisions, in turn.
fn answer_reads(server: &ScriptedServer, revisions: &'static [i64]) -> Flags {
    let flags = Flags::default();
    let received = flags.clone();
    server.on(RANGE, move |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        received.lock().unwrap().push(request.serializable);
        Reply::message(&RangeResponse {
            header: Some(header(revisions[call.nth])),
            ..RangeResponse::default()
        })
    });
    flags
}

async fn serializable(etcd: &Client) -> actix_etcd::Result<i64> {
    Ok(etcd.get("k").serializable().await?.header.revision)
}

#[tokio::test]
async fn stale_read_is_sent_again_as_linearizable() {
    let server = ScriptedServer::start().await;
    let flags = answer_reads(&server, &[10, 9, 10, 12, 11, 12]);
    let etcd = Client::connect([server.endpoint()])
        .await
        .unwrap()
        .ordered();
    assert_eq!(serializable(&etcd).await.unwrap(), 10);
    assert_eq!(serializable(&etcd).await.unwrap(), 10);
    assert_eq!(etcd.clone().get("k").await.unwrap().header.revision, 12);
    // A namespace of the client has seen the same.
    let namespaced = etcd.namespace("t/").unwrap();
    assert_eq!(serializable(&namespaced).await.unwrap(), 12);
    assert_eq!(
        *flags.lock().unwrap(),
        [true, true, false, false, true, false]
    );
}

#[tokio::test]
async fn stale_read_is_sent_to_another_member_first() {
    let (old, new) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let old_flags = answer_reads(&old, &[9; 40]);
    let new_flags = answer_reads(&new, &[10; 40]);
    let builder = Client::builder([old.endpoint(), new.endpoint()]).retry(NoRetry);
    let etcd = builder.connect().await.unwrap().ordered();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    while serializable(&etcd).await.unwrap() < 10 {}
    for _ in 0..10 {
        assert_eq!(serializable(&etcd).await.unwrap(), 10);
    }
    let (old_flags, new_flags) = (old_flags.lock().unwrap(), new_flags.lock().unwrap());
    assert!(old_flags.len() >= 5, "the old member was avoided");
    assert!(
        old_flags
            .iter()
            .chain(&*new_flags)
            .all(|serializable| *serializable)
    );
}

#[tokio::test]
async fn stale_reads_do_not_wait_for_retry_budget() {
    let (old, new) = (ScriptedServer::start().await, ScriptedServer::start().await);
    answer_reads(&old, &[9; 200]);
    answer_reads(&new, &[10; 200]);
    let mut limits = BudgetLimits::default();
    (limits.per_second, limits.burst, limits.per_success) = (1, 1, 0.0);
    let builder = Client::builder([old.endpoint(), new.endpoint()]).retry_budget(limits);
    let etcd = builder.connect().await.unwrap().ordered();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    while serializable(&etcd).await.unwrap() < 10 {}
    let mut reads = JoinSet::new();
    for _ in 0..60 {
        let etcd = etcd.clone();
        reads.spawn(async move { serializable(&etcd).await });
    }
    // With the budget, most of them would reach their deadlines.
    for read in reads.join_all().await {
        assert_eq!(read.unwrap(), 10);
    }
}

#[tokio::test]
async fn late_stale_response_is_not_accepted() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |call| {
        let reply = Reply::message(&RangeResponse {
            header: Some(header([10, 9, 10][call.nth])),
            ..RangeResponse::default()
        });
        match call.nth {
            // Later than the suspicion of the member.
            1 => reply.after(Duration::from_secs(1)),
            _ => reply,
        }
    });
    let etcd = Client::connect([server.endpoint()])
        .await
        .unwrap()
        .ordered();
    for _ in 0..2 {
        assert_eq!(serializable(&etcd).await.unwrap(), 10);
    }
    assert_eq!(server.count(RANGE), 3);
}

#[tokio::test]
async fn plain_client_and_new_order_accept_any_revision() {
    let server = ScriptedServer::start().await;
    answer_reads(&server, &[10, 9, 8, 7]);
    let plain = Client::connect([server.endpoint()]).await.unwrap();
    assert_eq!(serializable(&plain).await.unwrap(), 10);
    assert_eq!(serializable(&plain).await.unwrap(), 9);
    assert_eq!(serializable(&plain.ordered()).await.unwrap(), 8);
    assert_eq!(serializable(&plain.ordered()).await.unwrap(), 7);
}

#[tokio::test]
async fn restored_cluster_is_reported_at_once() {
    let server = ScriptedServer::start().await;
    let flags = answer_reads(&server, &[10, 5, 5, 5, 5]);
    let plain = Client::connect([server.endpoint()]).await.unwrap();
    let etcd = plain.ordered();
    assert_eq!(serializable(&etcd).await.unwrap(), 10);
    let regressed = serializable(&etcd).await.unwrap_err();
    assert_eq!(regressed.kind(), ErrorKind::RevisionRegressed);
    for part in ["revision 5", "revision 10", "`Client::ordered`"] {
        assert!(regressed.to_string().contains(part), "{regressed}");
    }
    let regressed = etcd.get("k").await.unwrap_err();
    assert_eq!(regressed.kind(), ErrorKind::RevisionRegressed);
    assert_eq!(*flags.lock().unwrap(), [true, true, false, false]);
    assert_eq!(serializable(&etcd.ordered()).await.unwrap(), 5);
}

#[tokio::test]
async fn writes_are_never_sent_again() {
    let server = ScriptedServer::start().await;
    answer_reads(&server, &[10]);
    server.on(PUT, |_| {
        Reply::message(&PutResponse {
            header: Some(header(4)),
            ..PutResponse::default()
        })
    });
    server.on(TXN, |_| {
        Reply::message(&TxnResponse {
            header: Some(header(5)),
            ..TxnResponse::default()
        })
    });
    let etcd = Client::connect([server.endpoint()])
        .await
        .unwrap()
        .ordered();
    assert_eq!(serializable(&etcd).await.unwrap(), 10);
    assert_eq!(etcd.put("k", "v").await.unwrap().header.revision, 4);
    let read_and_write = etcd.txn().then((get("k").serializable(), put("k", "v")));
    assert_eq!(read_and_write.await.unwrap().header.revision, 5);
    let conditional = etcd.txn().then(get("k")).otherwise(delete("k"));
    assert_eq!(conditional.await.unwrap().header.revision, 5);
    assert_eq!((server.count(PUT), server.count(TXN)), (1, 2));
}

#[tokio::test]
async fn stale_transaction_of_reads_is_sent_again() {
    let server = ScriptedServer::start().await;
    let serializable = Flags::default();
    let received = serializable.clone();
    server.on(TXN, move |call| {
        let request = TxnRequest::decode(call.body).unwrap();
        let expected = get("k").serializable().wire().unwrap();
        let is_serializable = request.success[0].request
            == Some(actix_etcd::proto::request_op::Request::RequestRange(
                expected,
            ));
        received.lock().unwrap().push(is_serializable);
        Reply::message(&TxnResponse {
            header: Some(header([10, 9, 10][call.nth])),
            ..TxnResponse::default()
        })
    });
    let etcd = Client::connect([server.endpoint()])
        .await
        .unwrap()
        .ordered();
    for _ in 0..2 {
        let reads = etcd.txn().then(get("k").serializable());
        assert_eq!(reads.await.unwrap().header.revision, 10);
    }
    assert_eq!(*serializable.lock().unwrap(), [true, true, false]);
}

#[tokio::test]
async fn member_without_requested_revision_is_not_the_last_word() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        if request.serializable {
            return Reply::status(
                11,
                "etcdserver: mvcc: required revision is a future revision",
            );
        }
        Reply::message(&RangeResponse {
            header: Some(header(10)),
            ..RangeResponse::default()
        })
    });
    let etcd = Client::connect([server.endpoint()])
        .await
        .unwrap()
        .ordered();
    let read = etcd.get("k").revision(10).serializable().await.unwrap();
    assert_eq!(read.header.revision, 10);
}

#[tokio::test]
async fn read_without_quorum_fails_as_stale() {
    let server = ScriptedServer::start().await;
    server.on(RANGE, |call| {
        let request = RangeRequest::decode(call.body).unwrap();
        if !request.serializable {
            return Reply::status(14, "etcdserver: no leader");
        }
        Reply::message(&RangeResponse {
            header: Some(header([10, 9][call.nth])),
            ..RangeResponse::default()
        })
    });
    let builder = Client::builder([server.endpoint()]).retry(NoRetry);
    let etcd = builder.connect().await.unwrap().ordered();
    assert_eq!(serializable(&etcd).await.unwrap(), 10);
    let stale = serializable(&etcd).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleRead);
    assert!(stale.is_transient());
    for part in ["revision 10", "no leader"] {
        assert!(stale.to_string().contains(part), "{stale}");
    }
}

#[tokio::test]
async fn delivered_event_is_seen() {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        let id = next_create(&mut rx).await.watch_id;
        tx.send(&created(id, 20)).await.unwrap();
        tx.send(&events(id, false, vec![event("k", 30)]))
            .await
            .unwrap();
        tx.closed().await;
    })
    .await;
    let flags = answer_reads(&server, &[20, 30]);
    let etcd = Client::connect([server.endpoint()])
        .await
        .unwrap()
        .ordered();
    let mut watch = etcd.watch("k").await.unwrap();
    assert_eq!(next_change(&mut watch).await.0, 30);
    assert_eq!(serializable(&etcd).await.unwrap(), 30);
    assert_eq!(*flags.lock().unwrap(), [true, false]);
}
