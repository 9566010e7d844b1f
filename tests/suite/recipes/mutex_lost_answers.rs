//! Locks whose writes arrive late, without an answer, or not at all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{
    store_server::{Fate, ScriptedStore, deletes, puts},
    wait::until,
};

const LONG: Duration = Duration::from_secs(60);

/// This fate for the first transaction of a kind, the other one for those after it.
fn first(
    meant: fn(&actix_etcd::proto::TxnRequest) -> bool,
    fate: Fate,
) -> impl FnMut(&actix_etcd::proto::TxnRequest) -> Fate {
    let mut met = false;
    move |request| {
        let first = meant(request) && !std::mem::replace(&mut met, true);
        if first { fate } else { Fate::Answered }
    }
}

#[tokio::test]
async fn a_key_whose_creation_was_not_answered_is_found_and_taken_for_our_own() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    store.decide(first(puts, Fate::AnswerLost));
    let guard = session.mutex("l").lock().await.unwrap();
    let keys = store.keys();
    assert_eq!(keys.len(), 1);
    assert_eq!(guard.token(), keys[0].create_revision);
    guard.unlock().await.unwrap();
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn a_key_that_was_created_late_is_swept_and_never_the_next_holders() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    store.decide(first(puts, Fate::Late));
    mutex.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!((store.late(), store.keys().len()), (1, 0));
    // The creation arrives when the key was deleted, and nobody hears of the delete that should sweep it away.
    store.decide(first(deletes, Fate::Late));
    store.arrive();
    assert_eq!(store.keys().len(), 1);
    until("it is being swept away", || store.late() == 1).await;
    // Another task of the session locks; then the delete arrives.
    let guard = mutex.lock().await.unwrap();
    store.arrive();
    assert!(guard.txn().await.unwrap().succeeded, "it is its own key");
    guard.unlock().await.unwrap();
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn a_key_whose_deletion_is_refused_for_a_while_does_not_stay() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let guard = session.mutex("l").lock().await.unwrap();
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = refusals.clone();
    store.decide(move |request| {
        if deletes(request) && count.fetch_add(1, Ordering::SeqCst) < 3 {
            return Fate::Refused;
        }
        Fate::Answered
    });
    drop(guard);
    until("the key is gone", || store.keys().is_empty()).await;
    assert!(refusals.load(Ordering::SeqCst) > 3);
    assert!(session.lease().is_some());
}

#[tokio::test]
async fn while_a_deletion_is_refused_others_of_the_session_hear_of_it_instead_of_waiting() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    let guard = mutex.lock().await.unwrap();
    store.decide(|_| Fate::Refused);
    drop(guard);
    let refused = tokio::time::timeout(LONG / 2, mutex.lock()).await;
    let refused = refused.expect("it hears of it").unwrap_err();
    assert_eq!(refused.kind(), actix_etcd::ErrorKind::PermissionDenied);
    // Who has it next takes the key over, and nothing deletes it then.
    store.decide(|_| Fate::Answered);
    let guard = mutex.lock().await.unwrap();
    assert!(guard.txn().await.unwrap().succeeded);
    guard.unlock().await.unwrap();
    until("the key is gone", || store.keys().is_empty()).await;
}
