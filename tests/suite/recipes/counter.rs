//! Counters: increments under contention, after lost responses and under random faults, and bad values.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use actix::Actor;
use actix_etcd::{Client, ErrorKind, Etcd, Outcome, recipes::counter::counter};
use testbed::{Chaos, ChaosKind, Cluster};
use tokio::task::JoinSet;

use crate::support::{
    connected_cluster::StartWithClient,
    store_server::{ScriptedStore, TxnFate},
};

#[tokio::test]
async fn counter_adds_sets_and_gets() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let visits = etcd.counter("visits");
    assert_eq!(visits.get().await.unwrap(), 0);
    assert_eq!(visits.add(5).await.unwrap(), 5);
    assert_eq!(visits.add(-7).await.unwrap(), -2);
    assert_eq!(visits.add(0).await.unwrap(), -2);
    assert_eq!(visits.set(40).await.unwrap(), 40);
    let stored = etcd.get("visits").await.unwrap();
    assert_eq!(stored.value().unwrap(), "40");
}

#[tokio::test]
async fn bad_values_and_overflow_are_typed_errors() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let n = etcd.counter("n");
    n.set(i64::MAX).await.unwrap();
    let error = n.add(1).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::InvalidArgument, Outcome::NotSent)
    );
    assert!(
        error.to_string().contains("`n` is 9223372036854775807"),
        "{error}"
    );
    assert_eq!(n.get().await.unwrap(), i64::MAX);
    etcd.put("n", "many").await.unwrap();
    for request in [n.add(1), n.get()] {
        let error = request.await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::CodecFailed, Outcome::NotSent)
        );
    }
    assert_eq!(n.set(1).await.unwrap(), 1);
    let error = etcd.counter("").add(1).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::EmptyKey, Outcome::NotSent)
    );
}

#[tokio::test]
async fn concurrent_increments_return_distinct_values() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut adders = JoinSet::new();
    for _ in 0..8 {
        let n = etcd.counter("n");
        adders.spawn(async move {
            let mut values = Vec::new();
            for _ in 0..10 {
                values.push(n.add(1).await.unwrap());
            }
            values
        });
    }
    let mut values = adders.join_all().await.concat();
    values.sort_unstable();
    assert_eq!(values, (1..=80).collect::<Vec<_>>());
}

#[tokio::test]
async fn increment_without_response_is_applied_once() {
    for fate in [TxnFate::ResponseLost, TxnFate::Delayed] {
        let (store, etcd) = ScriptedStore::start().await;
        let n = etcd.counter("n");
        assert_eq!(n.add(1).await.unwrap(), 1);
        let mut first = true;
        store.on_txn(move |_| {
            if std::mem::take(&mut first) {
                fate
            } else {
                TxnFate::Applied
            }
        });
        assert_eq!(n.add(1).await.unwrap(), 2, "{fate:?}");
        store.apply_delayed();
        assert_eq!(n.get().await.unwrap(), 2, "{fate:?}");
    }
}

#[actix::test]
async fn actors_count_by_messages() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client).start();
    let n = counter("n");
    assert_eq!(etcd.send(n.add(2)).await.unwrap().unwrap(), 2);
    assert_eq!(etcd.send(n.set(5)).await.unwrap().unwrap(), 5);
    assert_eq!(etcd.send(n.get()).await.unwrap().unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_is_lost_or_doubled_under_random_faults() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut adders = JoinSet::new();
    for _ in 0..4 {
        let (n, stop) = (etcd.counter("n"), stop.clone());
        adders.spawn(async move {
            let (mut values, mut unknown) = (Vec::new(), 0);
            while !stop.load(SeqCst) {
                match n.add(1).await {
                    Ok(value) => values.push(value),
                    Err(error) if error.outcome() == Outcome::Unknown => unknown += 1,
                    Err(error) => {
                        let expected = error.kind() == ErrorKind::Conflict || error.is_transient();
                        assert!(expected, "{error:?}");
                    }
                }
            }
            (values, unknown)
        });
    }
    let faults = Chaos::from_env("counter")
        .run(&cluster, &ChaosKind::ALL)
        .await;
    stop.store(true, SeqCst);
    let (mut values, mut unknown) = (Vec::new(), 0);
    for (adder, of_adder) in adders.join_all().await {
        values.extend(adder);
        unknown += of_adder;
    }
    values.sort_unstable();
    let total = etcd.counter("n").get().await.unwrap();
    println!(
        "{} increments, {unknown} unknown, {} faults",
        values.len(),
        faults.len()
    );
    assert!(
        values.windows(2).all(|pair| pair[0] < pair[1]),
        "a value was returned twice"
    );
    let known = i64::try_from(values.len()).unwrap();
    assert!(
        (known..=known + unknown).contains(&total),
        "the counter is {total}"
    );
    assert!(known > 20, "the counter was stuck");
}
