//! Elections whose writes are delayed, rejected, or applied without a response.

use std::time::Duration;

use actix_etcd::{ErrorKind, proto::TxnRequest};

use crate::support::{
    store_server::{ScriptedStore, TxnFate, deletes, puts},
    wait::until,
};

/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

/// Returns a script that gives `fate` to the first put, and applies all other transactions.
fn first_put(fate: TxnFate) -> impl FnMut(&TxnRequest) -> TxnFate {
    let mut seen = false;
    move |request| {
        let first = puts(request) && !std::mem::replace(&mut seen, true);
        if first { fate } else { TxnFate::Applied }
    }
}

fn value(store: &ScriptedStore) -> String {
    let keys = store.keys();
    assert_eq!(keys.len(), 1);
    String::from_utf8(keys[0].value.to_vec()).unwrap()
}

#[tokio::test]
async fn late_proclamation_spares_newer_one() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let leadership = session.election("e").campaign("0").await.unwrap();
    store.on_txn(first_put(TxnFate::Delayed));
    leadership.proclaim("1").await.unwrap();
    leadership.proclaim("2").await.unwrap();
    assert_eq!((store.delayed(), value(&store).as_str()), (1, "2"));
    store.apply_delayed();
    assert_eq!(value(&store), "2");
    leadership.proclaim("3").await.unwrap();
    assert_eq!(value(&store), "3");
}

#[tokio::test]
async fn dropped_proclamation_spares_newer_one() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let leadership = session.election("e").campaign("0").await.unwrap();
    store.on_txn(first_put(TxnFate::Delayed));
    tokio::select! {
        biased;
        done = leadership.proclaim("1") => panic!("not interrupted: {done:?}"),
        () = until("the proclamation is sent", || store.delayed() == 1) => {}
    }
    leadership.proclaim("2").await.unwrap();
    store.apply_delayed();
    assert_eq!(value(&store), "2");
}

#[tokio::test]
async fn proclamation_is_applied_once_after_lost_response() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let leadership = session.election("e").campaign("0").await.unwrap();
    store.on_txn(first_put(TxnFate::ResponseLost));
    leadership.proclaim("1").await.unwrap();
    leadership.proclaim("2").await.unwrap();
    assert_eq!(value(&store), "2");
    leadership.resign().await.unwrap();
}

#[tokio::test]
async fn late_resume_spares_newer_proclamation() {
    let (store, etcd) = ScriptedStore::start().await;
    let (former, next) = (
        etcd.session(LONG).await.unwrap(),
        etcd.session(LONG).await.unwrap(),
    );
    let old = former.election("e").campaign("old").await.unwrap();
    store.on_txn(first_put(TxnFate::Delayed));
    let resumed = next.election("e");
    let resumed = resumed.resume(old.key(), old.token(), "resumed").await;
    let leadership = resumed.unwrap().unwrap();
    assert_eq!(store.delayed(), 1);
    leadership.proclaim("newer").await.unwrap();
    store.apply_delayed();
    assert_eq!(value(&store), "newer");
}

#[tokio::test]
async fn failed_resign_is_completed_in_background() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let election = session.election("e");
    let leadership = election.campaign("v").await.unwrap();
    store.on_txn(|_| TxnFate::Rejected);
    let failed = leadership.resign().await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::PermissionDenied);
    assert!(!election.is_leader());
    store.on_txn(|_| TxnFate::Applied);
    until("the key is deleted", || store.keys().is_empty()).await;
    election
        .campaign("v")
        .await
        .unwrap()
        .resign()
        .await
        .unwrap();
}

#[tokio::test]
async fn campaign_that_fails_leaves_no_key() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    // The key is created, but the user may not read the others.
    store.on_txn(|request| {
        if puts(request) || deletes(request) {
            TxnFate::Applied
        } else {
            TxnFate::Rejected
        }
    });
    let campaign = session.election("e").campaign("v");
    let failed = campaign.await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::PermissionDenied);
    until("the key is deleted", || store.keys().is_empty()).await;
}
