//! Locks whose writes are delayed, rejected, or applied without a response.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use crate::support::{
    store_server::{ScriptedStore, TxnFate, deletes, puts},
    wait::until,
};

/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

/// Returns a script that gives `fate` to the first transaction that `matches` accepts, and applies all others.
fn first_matching(
    matches: fn(&actix_etcd::proto::TxnRequest) -> bool,
    fate: TxnFate,
) -> impl FnMut(&actix_etcd::proto::TxnRequest) -> TxnFate {
    let mut seen = false;
    move |request| {
        let first = matches(request) && !std::mem::replace(&mut seen, true);
        if first { fate } else { TxnFate::Applied }
    }
}

#[tokio::test]
async fn lock_recognizes_own_key_after_lost_response() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    store.on_txn(first_matching(puts, TxnFate::ResponseLost));
    let guard = session.mutex("l").lock().await.unwrap();
    let keys = store.keys();
    assert_eq!(keys.len(), 1);
    assert_eq!(guard.token(), keys[0].create_revision);
    guard.unlock().await.unwrap();
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn late_key_cleanup_spares_the_next_holder() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    store.on_txn(first_matching(puts, TxnFate::Delayed));
    mutex.lock().await.unwrap().unlock().await.unwrap();
    assert_eq!((store.delayed(), store.keys().len()), (1, 0));
    // The creation is applied after the lock was released. The delete that cleans up the key is delayed.
    store.on_txn(first_matching(deletes, TxnFate::Delayed));
    store.apply_delayed();
    assert_eq!(store.keys().len(), 1);
    until("the cleanup is sent", || store.delayed() == 1).await;
    // The delete is applied after another task of the session has locked.
    let guard = mutex.lock().await.unwrap();
    store.apply_delayed();
    assert!(
        guard.txn().await.unwrap().succeeded,
        "the delayed delete removed the key of the next holder"
    );
    guard.unlock().await.unwrap();
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn late_keys_of_many_locks_are_deleted() {
    const LOCKS: usize = 80;
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    // The first request of each lock is applied after the lock was released.
    let mut seen = HashSet::new();
    store.on_txn(move |request| {
        let is_first = puts(request) && seen.insert(request.compare[0].key.clone());
        if is_first {
            TxnFate::Delayed
        } else {
            TxnFate::Applied
        }
    });
    let mut locks = JoinSet::new();
    for number in 0..LOCKS {
        let mutex = session.mutex(format!("l{number}"));
        locks.spawn(async move { mutex.lock().await.unwrap().unlock().await.unwrap() });
    }
    locks.join_all().await;
    assert_eq!((store.delayed(), store.keys().len()), (LOCKS, 0));
    store.apply_delayed();
    assert_eq!(store.keys().len(), LOCKS);
    until("all late keys are deleted", || store.keys().is_empty()).await;
}

#[tokio::test]
async fn stale_unlock_spares_newer_lock() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    let first = mutex.lock().await.unwrap();
    // The first request to unlock is applied after the session has locked again, with the same key.
    store.on_txn(first_matching(deletes, TxnFate::Delayed));
    first.unlock().await.unwrap();
    let second = mutex.lock().await.unwrap();
    assert_eq!((store.delayed(), store.keys().len()), (1, 1));
    store.apply_delayed();
    assert!(second.txn().await.unwrap().succeeded);
    second.unlock().await.unwrap();
}

#[tokio::test]
async fn rejected_unlock_is_retried_until_deleted() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let guard = session.mutex("l").lock().await.unwrap();
    let deletes_sent = Arc::new(AtomicUsize::new(0));
    let count = deletes_sent.clone();
    store.on_txn(move |request| {
        if deletes(request) && count.fetch_add(1, Ordering::SeqCst) < 3 {
            return TxnFate::Rejected;
        }
        TxnFate::Applied
    });
    drop(guard);
    until("the key is deleted", || store.keys().is_empty()).await;
    assert!(deletes_sent.load(Ordering::SeqCst) > 3);
    assert!(session.lease().is_some());
}

#[tokio::test]
async fn rejected_unlock_fails_next_lock_of_session() {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    let guard = mutex.lock().await.unwrap();
    store.on_txn(|_| TxnFate::Rejected);
    drop(guard);
    let rejected = tokio::time::timeout(LONG / 2, mutex.lock()).await;
    let rejected = rejected.expect("lock does not hang").unwrap_err();
    assert_eq!(rejected.kind(), actix_etcd::ErrorKind::PermissionDenied);
    // The next holder takes over the key, which the retried delete must not remove.
    store.on_txn(|_| TxnFate::Applied);
    let guard = mutex.lock().await.unwrap();
    assert!(guard.txn().await.unwrap().succeeded);
    guard.unlock().await.unwrap();
    until("the key is deleted", || store.keys().is_empty()).await;
}
