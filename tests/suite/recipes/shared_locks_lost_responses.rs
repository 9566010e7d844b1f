//! Read-write locks, semaphores and barriers whose writes are delayed, rejected, or applied without a response.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client,
    proto::TxnRequest,
    recipes::{barrier::HoldOutcome, session::Session},
};
use tokio::time::timeout;

use crate::support::{
    store_server::{ScriptedStore, TxnFate, deletes, puts},
    wait::{TEST_TIMEOUT, hold, until},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

/// Returns a script that gives `fate` to the first transaction that `matches` accepts, and applies all others.
fn first_matching(
    matches: fn(&TxnRequest) -> bool,
    fate: TxnFate,
) -> impl FnMut(&TxnRequest) -> TxnFate {
    let mut seen = false;
    move |request| {
        let first = matches(request) && !std::mem::replace(&mut seen, true);
        if first { fate } else { TxnFate::Applied }
    }
}

async fn start() -> (ScriptedStore, Client, Session) {
    let (store, etcd) = ScriptedStore::start().await;
    let session = etcd.session(LONG).await.unwrap();
    (store, etcd, session)
}

#[tokio::test]
async fn own_key_is_recognized_after_lost_response() {
    let (store, _etcd, session) = start().await;
    let (lock, semaphore) = (session.rw_lock("l"), session.semaphore("s", 2));
    let lose = || store.on_txn(first_matching(puts, TxnFate::ResponseLost));
    let check = |token: i64| {
        let keys = store.keys();
        assert_eq!((keys.len(), keys[0].create_revision), (1, token));
    };
    lose();
    let guard = lock.read().await.unwrap();
    check(guard.token());
    guard.unlock().await.unwrap();
    lose();
    let guard = lock.write().await.unwrap();
    check(guard.token());
    guard.unlock().await.unwrap();
    lose();
    let guard = lock.try_read().await.unwrap().unwrap();
    check(guard.token());
    guard.unlock().await.unwrap();
    lose();
    let permit = semaphore.acquire().await.unwrap();
    check(permit.token());
    permit.release().await.unwrap();
    lose();
    let permit = semaphore.try_acquire().await.unwrap().unwrap();
    check(permit.token());
    permit.release().await.unwrap();
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn late_claims_are_deleted() {
    let (store, _etcd, session) = start().await;
    let (lock, semaphore) = (session.rw_lock("l"), session.semaphore("s", 2));
    let delay = || store.on_txn(first_matching(puts, TxnFate::Delayed));
    delay();
    lock.read().await.unwrap().unlock().await.unwrap();
    delay();
    lock.write().await.unwrap().unlock().await.unwrap();
    delay();
    semaphore.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((store.delayed(), store.keys().len()), (3, 0));
    store.apply_delayed();
    assert_eq!(store.keys().len(), 3);
    until("the late keys are deleted", || store.keys().is_empty()).await;
    // Another claim of the session uses the key while it is followed.
    delay();
    let reader = lock.read().await.unwrap();
    let second = lock.read().await.unwrap();
    assert_ne!(reader.key(), second.key());
    reader.unlock().await.unwrap();
    let third = lock.read().await.unwrap();
    hold(SECOND / 2).await;
    assert!(third.txn().await.unwrap().succeeded && second.txn().await.unwrap().succeeded);
    store.apply_delayed();
    hold(SECOND / 2).await;
    assert!(third.txn().await.unwrap().succeeded);
    drop((second, third));
    until("no key is left", || store.keys().is_empty()).await;
}

#[tokio::test]
async fn late_write_request_does_not_block_readers() {
    let (store, etcd, session) = start().await;
    let other = etcd.session(LONG).await.unwrap();
    store.on_txn(first_matching(puts, TxnFate::Delayed));
    session
        .rw_lock("l")
        .write()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    store.apply_delayed();
    assert_eq!(store.keys().len(), 1);
    let lock = other.rw_lock("l");
    let reading = timeout(TEST_TIMEOUT, lock.read().into_future()).await;
    reading.unwrap().unwrap().unlock().await.unwrap();
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn stale_release_spares_newer_claim() {
    let (store, _etcd, session) = start().await;
    let lock = session.rw_lock("l");
    let first = lock.read().await.unwrap();
    store.on_txn(first_matching(deletes, TxnFate::Delayed));
    first.unlock().await.unwrap();
    let second = lock.read().await.unwrap();
    assert_eq!((store.delayed(), store.keys().len()), (1, 1));
    store.apply_delayed();
    assert!(second.txn().await.unwrap().succeeded);
    second.unlock().await.unwrap();
}

#[tokio::test]
async fn late_hold_does_not_hold_released_barrier() {
    let (store, etcd) = ScriptedStore::start().await;
    let barrier = etcd.barrier("b");
    store.on_txn(first_matching(puts, TxnFate::Delayed));
    assert!(barrier.hold().await.unwrap().is_new());
    assert!(barrier.release().await.unwrap());
    assert_eq!((store.delayed(), store.keys().len()), (1, 0));
    store.apply_delayed();
    assert!(
        store.keys().is_empty(),
        "a released barrier is held by a late request"
    );
    assert!(!barrier.is_held().await.unwrap());
}

#[tokio::test]
async fn hold_is_recognized_after_lost_responses() {
    let (store, etcd) = ScriptedStore::start().await;
    let barrier = etcd.barrier("b");
    // Of both writes: the creation, and the change of the lease.
    let mut seen = 0;
    store.on_txn(move |request| {
        seen += usize::from(puts(request));
        let lost = puts(request) && (seen == 1 || seen == 3);
        if lost {
            TxnFate::ResponseLost
        } else {
            TxnFate::Applied
        }
    });
    let HoldOutcome::Held { revision, .. } = barrier.hold().await.unwrap() else {
        panic!("the barrier does not recognize its own key");
    };
    let keys = store.keys();
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].create_revision, keys[0].lease), (revision, 0));
    // A release whose first response is lost, and that arrives again after the next hold.
    store.on_txn(first_matching(deletes, TxnFate::Delayed));
    assert!(barrier.release().await.unwrap());
    store.on_txn(|_| TxnFate::Applied);
    assert!(barrier.hold().await.unwrap().is_new());
    store.apply_delayed();
    assert!(
        barrier.is_held().await.unwrap(),
        "a late release released the next hold"
    );
}

#[tokio::test]
async fn rejected_hold_leaves_nothing() {
    let (store, etcd) = ScriptedStore::start().await;
    let barrier = etcd.barrier("b");
    let mut seen = 0;
    store.on_txn(move |request| {
        seen += usize::from(puts(request));
        // The change of the lease.
        let rejected = puts(request) && seen == 2;
        if rejected {
            TxnFate::Rejected
        } else {
            TxnFate::Applied
        }
    });
    let rejected = barrier.hold().await.unwrap_err();
    assert_eq!(rejected.kind(), actix_etcd::ErrorKind::PermissionDenied);
    until("no key is left", || store.keys().is_empty()).await;
    until("the lease is revoked", || {
        store.lease_server.revoked().len() == 1
    })
    .await;
}

#[tokio::test]
async fn late_completion_does_not_complete_next_round() {
    let (store, etcd, session) = start().await;
    let other = etcd.session(LONG).await.unwrap();
    let barrier = session.double_barrier("d", 2);
    let puts_ready = |request: &TxnRequest| {
        puts(request)
            && request
                .compare
                .iter()
                .any(|compare| compare.key == "d/ready")
    };
    store.on_txn(first_matching(puts_ready, TxnFate::Delayed));
    let first = tokio::spawn(other.double_barrier("d", 2).enter().into_future());
    until("the first participant waits", || store.keys().len() == 1).await;
    let second = barrier.enter().await.unwrap();
    let first = timeout(TEST_TIMEOUT, first)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let (first, second) = tokio::join!(first.leave(), second.leave());
    assert!(first.is_ok() && second.is_ok());
    assert!(store.keys().is_empty() && store.delayed() == 1);
    let done = Arc::new(AtomicBool::new(false));
    let (enter, signal) = (barrier.enter(), done.clone());
    let next = tokio::spawn(async move {
        let inside = enter.await;
        signal.store(true, Ordering::SeqCst);
        inside
    });
    until("the participant of the next round waits", || {
        store.keys().len() == 1
    })
    .await;
    store.apply_delayed();
    assert_eq!(
        store.keys().len(),
        1,
        "a late request has put the ready key"
    );
    hold(SECOND / 5).await;
    assert!(!done.load(Ordering::SeqCst));
    let second = other.double_barrier("d", 2).enter().await.unwrap();
    let first = timeout(TEST_TIMEOUT, next).await.unwrap().unwrap().unwrap();
    let (first, second) = tokio::join!(first.leave(), second.leave());
    assert!(first.is_ok() && second.is_ok());
    assert!(store.keys().is_empty());
}
