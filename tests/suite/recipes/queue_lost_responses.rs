//! Queues whose writes are delayed, or applied without a response.

use std::time::Duration;

use actix_etcd::{ErrorKind, Outcome, kv::delete, proto::TxnRequest};

use crate::support::{
    store_server::{ScriptedStore, TxnFate, deletes, puts_below},
    wait::until,
};

/// Returns whether a transaction claims an item.
fn claims(request: &TxnRequest) -> bool {
    puts_below(request, b"__jobs/claims/")
}

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

fn keys_below(store: &ScriptedStore, prefix: &[u8]) -> usize {
    let keys = store.keys();
    keys.iter().filter(|kv| kv.key.starts_with(prefix)).count()
}

#[tokio::test]
async fn push_without_response_adds_one_item() {
    for fate in [TxnFate::ResponseLost, TxnFate::Delayed] {
        let (store, etcd) = ScriptedStore::start().await;
        let jobs = etcd.queue("jobs");
        // Creates what later writes of the client are marked with.
        etcd.put("other", "").exactly_once().await.unwrap();
        let (met, mut is_met) = tokio::sync::mpsc::unbounded_channel();
        let mut script = first_matching(|request| puts_below(request, b"jobs/"), fate);
        store.on_txn(move |request| {
            let fate = script(request);
            if fate != TxnFate::Applied {
                met.send(()).unwrap();
            }
            fate
        });
        let pushed = jobs.push("a").await.unwrap();
        assert_eq!(is_met.try_recv(), Ok(()), "{fate:?}");
        assert_eq!(keys_below(&store, b"jobs/"), 1, "{fate:?}");
        jobs.take().await.unwrap().done().await.unwrap();
        // A copy that arrives after the completion does not add the item again.
        store.apply_delayed();
        assert_eq!(keys_below(&store, b"jobs/"), 0, "{fate:?}");
        assert!(pushed.revision > 0);
    }
}

#[tokio::test]
async fn claim_without_response_is_recognized() {
    for fate in [TxnFate::ResponseLost, TxnFate::Delayed] {
        let (store, etcd) = ScriptedStore::start().await;
        let jobs = etcd.queue("jobs");
        jobs.push("a").await.unwrap();
        store.on_txn(first_matching(claims, fate));
        let item = jobs.take().await.unwrap();
        assert_eq!(
            (&item.value()[..], item.attempt()),
            (&b"a"[..], 1),
            "{fate:?}"
        );
        item.put_back().await.unwrap();
        // A copy that arrives later does not take the item.
        store.apply_delayed();
        assert_eq!(keys_below(&store, b"__jobs/claims/"), 0, "{fate:?}");
        let item = jobs.take().await.unwrap();
        assert_eq!(item.attempt(), 2, "{fate:?}");
        item.done().await.unwrap();
    }
}

#[tokio::test]
async fn claim_without_taker_is_deleted() {
    let (store, etcd) = ScriptedStore::start().await;
    let jobs = etcd.queue("jobs");
    jobs.push("a").await.unwrap();
    let mut fates = vec![TxnFate::Rejected, TxnFate::ResponseLost];
    store.on_txn(move |request| {
        let fate = claims(request).then(|| fates.pop()).flatten();
        fate.unwrap_or(TxnFate::Applied)
    });
    let error = jobs.take().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    until("the claim is deleted", || {
        keys_below(&store, b"__jobs/claims/") == 0
    })
    .await;
    let item = jobs.take().await.unwrap();
    assert_eq!(item.attempt(), 2);
    item.done().await.unwrap();
}

#[tokio::test]
async fn claim_of_a_deleted_item_is_deleted() {
    let (store, etcd) = ScriptedStore::start().await;
    let jobs = etcd.queue("jobs");
    let pushed = jobs.push("a").await.unwrap();
    let (claimed, mut is_claimed) = tokio::sync::mpsc::unbounded_channel();
    store.on_txn(move |request| {
        if claims(request) && claimed.send(()).is_ok() {
            return TxnFate::ResponseLost;
        }
        TxnFate::Applied
    });
    // The queue keeps the session open, whose end would delete the claim.
    let taker = jobs.clone();
    let taking = tokio::spawn(async move { taker.try_take().await });
    is_claimed.recv().await.unwrap();
    etcd.txn().then([delete(pushed.key)]).await.unwrap();
    drop(is_claimed);
    assert!(taking.await.unwrap().unwrap().is_none());
    until("the claim is deleted", || {
        keys_below(&store, b"__jobs/claims/") == 0
    })
    .await;
    drop(jobs);
}

#[tokio::test]
async fn completion_without_response_is_found_out() {
    for fate in [TxnFate::ResponseLost, TxnFate::Delayed] {
        let (store, etcd) = ScriptedStore::start().await;
        let jobs = etcd.queue("jobs");
        jobs.push("a").await.unwrap();
        let item = jobs.take().await.unwrap();
        store.on_txn(first_matching(|_| true, fate));
        item.done_with(actix_etcd::kv::put("done", "a"))
            .await
            .unwrap();
        store.apply_delayed();
        assert_eq!(keys_below(&store, b"jobs/"), 0, "{fate:?}");
        assert_eq!(keys_below(&store, b"__jobs/"), 0, "{fate:?}");
        let done = store.keys().into_iter().find(|kv| kv.key == "done");
        assert_eq!(done.unwrap().version, 1, "{fate:?}");
    }
}

#[tokio::test]
async fn claim_of_a_dropped_take_is_given_back() {
    let (store, etcd) = ScriptedStore::start().await;
    let jobs = etcd.queue("jobs");
    jobs.push("a").await.unwrap();
    let (claimed, mut is_claimed) = tokio::sync::mpsc::unbounded_channel();
    store.on_txn(move |request| {
        if claims(request) {
            // The response to the first copy is lost, so that the taker is still waiting.
            claimed.send(()).unwrap();
            return TxnFate::ResponseLost;
        }
        TxnFate::Applied
    });
    let taking = tokio::spawn(async move { jobs.take().await });
    is_claimed.recv().await.unwrap();
    assert_eq!(keys_below(&store, b"__jobs/claims/"), 1);
    taking.abort();
    assert!(taking.await.unwrap_err().is_cancelled());
    store.on_txn(|_| TxnFate::Applied);
    until("the item is given back", || {
        keys_below(&store, b"__jobs/claims/") == 0
    })
    .await;
    assert_eq!(keys_below(&store, b"jobs/"), 1);
}

#[tokio::test]
async fn item_that_cannot_be_a_dead_letter_is_taken_again() {
    let (store, etcd) = ScriptedStore::start().await;
    let jobs = etcd.queue("jobs").dead_letters(1, "dead");
    jobs.push("a").await.unwrap();
    jobs.take().await.unwrap().put_back().await.unwrap();
    store.on_txn(|request| {
        if puts_below(request, b"dead/") {
            TxnFate::Rejected
        } else {
            TxnFate::Applied
        }
    });
    assert_eq!(jobs.take().await.unwrap().attempt(), 2);
}

#[tokio::test]
async fn failed_delay_ends_the_visibility_with_it() {
    let (store, etcd) = ScriptedStore::start().await;
    let jobs = etcd.queue("jobs").visibility(Duration::from_secs(3600));
    jobs.push("a").await.unwrap();
    let item = jobs.take().await.unwrap();
    store.on_txn(first_matching(claims, TxnFate::Rejected));
    let error = item.retry_after(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(!item.ownership().is_certain());
    assert_eq!(item.remaining(), Duration::ZERO);
    until("the claim is deleted", || {
        keys_below(&store, b"__jobs/claims/") == 0
    })
    .await;
}

#[tokio::test]
async fn failed_return_ends_the_ownership_and_is_repeated() {
    for fate in [TxnFate::ResponseLost, TxnFate::Delayed] {
        let (store, etcd) = ScriptedStore::start().await;
        let jobs = etcd.queue("jobs");
        jobs.push("a").await.unwrap();
        let item = jobs.take().await.unwrap();
        store.on_txn(first_matching(deletes, fate));
        let error = item.put_back().await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{fate:?}");
        assert!(!item.ownership().is_certain());
        until("the claim is deleted", || {
            keys_below(&store, b"__jobs/claims/") == 0
        })
        .await;
        let again = jobs.take().await.unwrap();
        assert_eq!(again.attempt(), 2, "{fate:?}");
        store.apply_delayed();
        again.done().await.unwrap();
    }
}
