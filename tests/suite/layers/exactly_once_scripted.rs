//! Exactly-once writes whose responses are lost, or whose copies arrive late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    kv::{Compare, put},
    layers::conditional_write::{CreateOutcome, ModifyOutcome, UpdateOutcome},
    proto::TxnRequest,
};

use testbed::Reply;

use crate::support::{
    scripted_put::RANGE,
    store_server::{ScriptedStore, TxnFate, deletes, puts},
    wait::until,
};

/// Gives `fate` to the first transactions that write `key`, as many as `count`, and applies all others.
fn fate_of_writes(
    key: &'static str,
    count: usize,
    fate: TxnFate,
) -> impl FnMut(&TxnRequest) -> TxnFate {
    let mut remaining = count;
    move |request| {
        if remaining > 0 && writes(request, key) {
            remaining -= 1;
            fate
        } else {
            TxnFate::Applied
        }
    }
}

/// Returns whether the transaction, or one that is nested in it, writes this key.
fn writes(request: &TxnRequest, key: &str) -> bool {
    puts(request) && format!("{request:?}").contains(&format!("key: b\"{key}\""))
}

/// Returns the version of a key, which counts how often it was written.
fn version(store: &ScriptedStore, key: &str) -> i64 {
    let found = store.keys().into_iter().find(|kv| kv.key == key);
    found.map_or(0, |kv| kv.version)
}

/// Counts the transactions that write `key`.
fn count_writes(store: &ScriptedStore, key: &'static str, fate: TxnFate) -> Arc<AtomicUsize> {
    let counter = Arc::new(AtomicUsize::new(0));
    let count = counter.clone();
    let mut first = fate_of_writes(key, 1, fate);
    store.on_txn(move |request| {
        if writes(request, key) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        first(request)
    });
    counter
}

#[tokio::test]
async fn lost_response_is_found_out() {
    let (store, etcd) = ScriptedStore::start().await;
    // The second write uses the slot that the first one has created.
    for expected in 1..=2 {
        let sent = count_writes(&store, "k", TxnFate::ResponseLost);
        let applied = etcd.put("k", "v").exactly_once().await.unwrap();
        assert!(applied.succeeded && applied.response.is_none());
        let kv = store.keys().into_iter().find(|kv| kv.key == "k").unwrap();
        assert_eq!((kv.version, kv.mod_revision), (expected, applied.revision));
        assert_eq!(sent.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn late_copy_is_not_applied() {
    let (store, etcd) = ScriptedStore::start().await;
    for expected in 1..=3 {
        let sent = count_writes(&store, "k", TxnFate::Delayed);
        let applied = etcd.put("k", "v").exactly_once().await.unwrap();
        assert!(
            applied.response.is_some(),
            "the repeated write has a response"
        );
        assert_eq!(sent.load(Ordering::SeqCst), 2);
        assert_eq!(store.delayed(), 1);
        store.apply_delayed();
        assert_eq!(version(&store, "k"), expected);
    }
}

#[tokio::test]
async fn lost_responses_of_the_resolution_are_found_out() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("k", "v").exactly_once().await.unwrap();
    // The write is delayed, the first request that cancels it is delayed as well, and the response of the second one is
    // lost.
    let mut step = 0;
    store.on_txn(move |_| {
        step += 1;
        match step {
            1 | 2 => TxnFate::Delayed,
            3 => TxnFate::ResponseLost,
            _ => TxnFate::Applied,
        }
    });
    etcd.put("k", "v").exactly_once().await.unwrap();
    assert_eq!(version(&store, "k"), 2);
    store.apply_delayed();
    assert_eq!(version(&store, "k"), 2);
    etcd.put("k", "v").exactly_once().await.unwrap();
    assert_eq!(version(&store, "k"), 3);
}

#[tokio::test]
async fn lost_response_of_a_transaction_shows_its_branch() {
    let (store, etcd) = ScriptedStore::start().await;
    for (exists, branch) in [(false, "then"), (true, "otherwise")] {
        store.on_txn(fate_of_writes("k", 1, TxnFate::ResponseLost));
        let applied = etcd
            .txn()
            .when(Compare::version("k").eq(0))
            .then((put("k", "then"), put("log", "then")))
            .otherwise(put("log", "otherwise"))
            .exactly_once()
            .await
            .unwrap();
        assert_eq!(applied.succeeded, !exists);
        assert!(applied.response.is_none());
        let log = store.keys().into_iter().find(|kv| kv.key == "log").unwrap();
        assert_eq!(log.value, branch);
        assert_eq!(log.mod_revision, applied.revision);
    }
    assert_eq!(version(&store, "log"), 2);
}

#[tokio::test]
async fn conditional_writes_resolve_lost_responses() {
    let (store, etcd) = ScriptedStore::start().await;
    let lose_next = || store.on_txn(fate_of_writes("k", 1, TxnFate::ResponseLost));
    lose_next();
    let CreateOutcome::Created { revision } = etcd.create("k", "1").await.unwrap() else {
        panic!("the own write was taken for that of another client");
    };
    lose_next();
    let CreateOutcome::Exists(kv) = etcd.create("k", "other").await.unwrap() else {
        panic!("the key was created twice");
    };
    assert_eq!((kv.mod_revision, &kv.value[..]), (revision, &b"1"[..]));
    lose_next();
    let updated = etcd.update("k", "2").at(revision).await.unwrap();
    assert!(
        matches!(updated, UpdateOutcome::Updated { .. }),
        "{updated:?}"
    );
    lose_next();
    let conflict = etcd.update("k", "3").at(revision).await.unwrap();
    assert!(matches!(conflict, UpdateOutcome::Conflict(Some(kv)) if kv.value == "2"));
    lose_next();
    let append = |kv: &actix_etcd::kv::KeyValue| [&kv.value[..], b"x"].concat();
    let modified = etcd.modify("k", move |kv| kv.map(append).unwrap_or_default());
    let modified = modified.await.unwrap();
    assert!(
        matches!(modified, ModifyOutcome::Written { .. }),
        "{modified:?}"
    );
    let kv = store.keys().into_iter().find(|kv| kv.key == "k").unwrap();
    assert_eq!((kv.version, &kv.value[..]), (3, &b"2x"[..]));
}

#[tokio::test]
async fn write_without_marker_is_unknown_after_lost_response() {
    let (store, etcd) = ScriptedStore::start().await;
    store.on_txn(fate_of_writes("k", 1, TxnFate::ResponseLost));
    let error = etcd.create("k", "1").without_marker().await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert_eq!(store.keys().len(), 1, "only the key, and no marker");
}

/// Deletes the markers, as another program would that does not know them.
async fn delete_markers(store: &ScriptedStore, etcd: &Client) {
    for kv in store.keys() {
        if kv.key.starts_with(b"actix-etcd/markers/") {
            etcd.txn()
                .then(actix_etcd::kv::delete(kv.key))
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn deleted_marker_leaves_outcome_unknown() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("k", "v").exactly_once().await.unwrap();
    // The response of the write is lost, and the markers are deleted before its outcome is found out.
    let (reached, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, released) = (reached.clone(), go_on.clone());
    store.on_txn(move |request| {
        let deletes = deletes(request);
        match seen.load(Ordering::SeqCst) {
            0 => {
                seen.store(1, Ordering::SeqCst);
                TxnFate::ResponseLost
            }
            _ if deletes || released.load(Ordering::SeqCst) > 0 => TxnFate::Applied,
            _ => TxnFate::Delayed,
        }
    });
    let writing = tokio::spawn(etcd.put("k", "v").exactly_once().into_future());
    until("the response is lost", || {
        reached.load(Ordering::SeqCst) == 1
    })
    .await;
    delete_markers(&store, &etcd).await;
    go_on.store(1, Ordering::SeqCst);
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown);
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("marker"), "{reason}");
    assert!(error.to_string().contains("put failed"), "{error}");
    // Later writes use another slot.
    etcd.put("k", "v").exactly_once().await.unwrap();
    assert_eq!(version(&store, "k"), 3);
}

#[tokio::test]
async fn slot_deleted_between_writes_is_replaced() {
    let (store, etcd) = ScriptedStore::start().await;
    for expected in 1..=3 {
        let applied = etcd.put("k", "v").exactly_once().await.unwrap();
        assert!(applied.response.is_some());
        assert_eq!(version(&store, "k"), expected);
        delete_markers(&store, &etcd).await;
    }
}

#[tokio::test]
async fn unreachable_resolution_leaves_outcome_unknown_until_deadline() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("first", "v").exactly_once().await.unwrap();
    store.on_txn(|_| TxnFate::Delayed);
    let write = etcd.put("k", "v").exactly_once();
    let error = write.timeout(Duration::from_millis(400)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // In the background, the write is cancelled as soon as the server responds.
    let cancelled = Arc::new(AtomicUsize::new(0));
    let count = cancelled.clone();
    store.on_txn(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        TxnFate::Applied
    });
    until("the write is cancelled", || {
        cancelled.load(Ordering::SeqCst) > 0
    })
    .await;
    store.apply_delayed();
    assert_eq!(version(&store, "k"), 0);
}

#[tokio::test]
async fn abandoned_write_is_cancelled_in_background() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("first", "v").exactly_once().await.unwrap();
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    store.on_txn(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        TxnFate::Delayed
    });
    let writing = tokio::spawn(etcd.put("k", "v").exactly_once().into_future());
    until("the write is sent", || reached.load(Ordering::SeqCst) > 0).await;
    writing.abort();
    let cancelled = Arc::new(AtomicUsize::new(0));
    let count = cancelled.clone();
    store.on_txn(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        TxnFate::Applied
    });
    until("the write is cancelled", || {
        cancelled.load(Ordering::SeqCst) > 0
    })
    .await;
    store.apply_delayed();
    assert_eq!(version(&store, "k"), 0);
}

/// A proxy has sent a copy of the write to a member that is frozen, and repeats it on another one, which rejects it.
#[tokio::test]
async fn rejected_write_is_cancelled() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("first", "v").exactly_once().await.unwrap();
    let denied = TxnFate::DelayedAndFails(7, "etcdserver: permission denied");
    store.on_txn(fate_of_writes("k", 1, denied));
    let error = etcd.put("k", "v").exactly_once().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::PermissionDenied, Outcome::Rejected)
    );
    store.apply_delayed();
    assert_eq!(version(&store, "k"), 0);
    etcd.put("other", "v").exactly_once().await.unwrap();
    assert_eq!(version(&store, "other"), 1);
}

#[tokio::test]
async fn denied_resolution_leaves_outcome_unknown() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("first", "v").exactly_once().await.unwrap();
    let mut sent = 0;
    store.on_txn(move |_| {
        sent += 1;
        if sent == 1 {
            TxnFate::ResponseLost
        } else {
            TxnFate::Rejected
        }
    });
    let error = etcd.put("k", "v").exactly_once().await.unwrap_err();
    assert_eq!(
        (error.outcome(), version(&store, "k")),
        (Outcome::Unknown, 1)
    );
    assert!(!error.is_retryable());
}

/// etcd refuses all puts, and accepts deletes.
#[tokio::test]
async fn writes_are_resolved_without_space() {
    const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
    let (store, etcd) = ScriptedStore::start().await;
    for (first, applied) in [
        (TxnFate::AppliedButFails(8, NO_SPACE), true),
        (TxnFate::DelayedAndFails(8, NO_SPACE), false),
    ] {
        store.on_txn(|_| TxnFate::Applied);
        etcd.put("first", "v").exactly_once().await.unwrap();
        let mut fate = fate_of_writes("k", 1, first);
        let mut begun = false;
        store.on_txn(move |request| match fate(request) {
            TxnFate::Applied if begun && puts(request) => TxnFate::Fails(8, NO_SPACE),
            fate => {
                begun = true;
                fate
            }
        });
        let before = version(&store, "k");
        match etcd.put("k", "v").exactly_once().await {
            Ok(write) => assert!(applied && write.response.is_none()),
            Err(error) => {
                assert!(!applied, "{error}");
                assert_eq!(
                    (error.kind(), error.outcome()),
                    (ErrorKind::NoSpace, Outcome::Rejected)
                );
            }
        }
        store.apply_delayed();
        assert_eq!(version(&store, "k") - before, i64::from(applied));
    }
}

#[tokio::test]
async fn failed_read_of_a_modification_wrote_nothing() {
    let (store, etcd) = ScriptedStore::start().await;
    let server = &store.lease_server.server;
    server.on(RANGE, |_| Reply::hang());
    let modify = etcd
        .modify("k", |_| "v")
        .timeout(Duration::from_millis(300));
    assert_eq!(modify.await.unwrap_err().outcome(), Outcome::NotSent);
}

#[tokio::test]
async fn unreadable_marker_after_failed_condition_leaves_outcome_unknown() {
    let (store, etcd) = ScriptedStore::start().await;
    etcd.put("first", "v").exactly_once().await.unwrap();
    delete_markers(&store, &etcd).await;
    let server = &store.lease_server.server;
    server.on(RANGE, |_| Reply::hang());
    let write = etcd.put("k", "v").exactly_once();
    let error = write.timeout(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert!(!error.is_retryable());
    assert!(error.to_string().contains("outcome unknown"), "{error}");
}
