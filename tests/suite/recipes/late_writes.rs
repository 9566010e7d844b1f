//! Writes whose response was lost and that etcd applies after a later write.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use crate::support::store_server::{ScriptedStore, TxnFate, puts};

/// Returns the addresses that are stored.
fn addresses(store: &ScriptedStore) -> Vec<String> {
    let address = |value: &[u8]| {
        let value: Value = serde_json::from_slice(value).unwrap();
        value["Addr"].as_str().unwrap().to_owned()
    };
    let keys = store.keys();
    keys.iter().map(|kv| address(&kv.value)).collect()
}

#[tokio::test]
async fn late_update_does_not_revert_newer_registration() {
    let (store, etcd) = ScriptedStore::start().await;
    let registration = etcd.register("web", "a:1").id("1").await.unwrap();
    assert_eq!(addresses(&store), ["a:1"]);
    let delay = Arc::new(AtomicBool::new(true));
    let delayed = delay.clone();
    store.on_txn(move |txn| {
        if puts(txn) && delayed.load(Ordering::SeqCst) {
            TxnFate::Delayed
        } else {
            TxnFate::Applied
        }
    });
    registration.update("b:2", Value::Null).await.unwrap_err();
    assert_eq!(store.delayed(), 1);
    delay.store(false, Ordering::SeqCst);
    registration.update("c:3", Value::Null).await.unwrap();
    assert_eq!(addresses(&store), ["c:3"]);
    store.apply_delayed();
    assert_eq!(addresses(&store), ["c:3"], "the earlier update won");
    // A later update is applied in spite of revisions that the registration does not know.
    registration.update("d:4", Value::Null).await.unwrap();
    assert_eq!(addresses(&store), ["d:4"]);
}

#[tokio::test]
async fn update_follows_earlier_update_whose_response_was_lost() {
    let (store, etcd) = ScriptedStore::start().await;
    let registration = etcd.register("web", "a:1").id("1").await.unwrap();
    let lose = Arc::new(AtomicBool::new(true));
    let lost = lose.clone();
    store.on_txn(move |txn| {
        if puts(txn) && lost.swap(false, Ordering::SeqCst) {
            TxnFate::ResponseLost
        } else {
            TxnFate::Applied
        }
    });
    registration.update("b:2", Value::Null).await.unwrap_err();
    assert_eq!(addresses(&store), ["b:2"]);
    registration.update("c:3", Value::Null).await.unwrap();
    assert_eq!(addresses(&store), ["c:3"]);
}
