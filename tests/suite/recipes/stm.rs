//! Transactions of closures: what each level of isolation forbids and allows, and how they end.
//!
//! Another client interferes at a fixed point: within the first run of the closure.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use actix::Actor;
use actix_etcd::{
    Client, Error, ErrorKind, Etcd, Outcome,
    actor::EtcdRequest,
    recipes::stm::{Isolation, Transaction},
};
use bytes::Bytes;
use testbed::Cluster;

use crate::support::{
    connected_cluster::StartWithClient,
    store_server::{ScriptedStore, TxnFate, puts_below},
};

const ALL_LEVELS: [Isolation; 4] = [
    Isolation::SerializableSnapshot,
    Isolation::Serializable,
    Isolation::RepeatableReads,
    Isolation::ReadCommitted,
];

async fn put_all<const N: usize>(etcd: &Client, keys: [(&str, &str); N]) {
    for (key, value) in keys {
        etcd.put(key, value).await.unwrap();
    }
}

async fn value(etcd: &Client, key: &str) -> Option<String> {
    let found = etcd.get(key).await.unwrap();
    found.value().map(text)
}

fn text(value: &Bytes) -> String {
    String::from_utf8(value.to_vec()).unwrap()
}

async fn read(tx: &Transaction, key: &str) -> Result<String, Error> {
    Ok(tx.get(key).await?.as_ref().map(text).unwrap_or_default())
}

/// Runs a closure that decides by `a`, writes `b`, and is interfered with by a put of `interfering`. Returns the number of
/// attempts.
async fn attempts_with_interference(etcd: &Client, isolation: Isolation, interfering: &str) -> u32 {
    put_all(etcd, [("a", "1"), ("b", "1")]).await;
    let stm = etcd.stm().isolation(isolation);
    stm.run(async |tx| {
        read(&tx, "a").await?;
        if tx.attempt() == 1 {
            etcd.put(interfering, "other").await?;
        }
        tx.put("b", "mine");
        Ok::<_, Error>(tx.attempt())
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn levels_conflict_as_documented() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for (isolation, read_key, written_key) in [
        (Isolation::SerializableSnapshot, 2, 2),
        (Isolation::Serializable, 2, 1),
        (Isolation::RepeatableReads, 2, 1),
        (Isolation::ReadCommitted, 1, 1),
    ] {
        for (interfering, expected) in [("a", read_key), ("b", written_key), ("c", 1)] {
            let attempts = attempts_with_interference(&etcd, isolation, interfering).await;
            assert_eq!(attempts, expected, "{isolation:?}, {interfering}");
            assert_eq!(value(&etcd, "b").await.unwrap(), "mine");
        }
    }
}

/// Returns the values of `a` and `b` that the first attempt sees, if another client changes both between the two reads,
/// and whether that attempt was committed.
async fn read_both(etcd: &Client, isolation: Isolation) -> (String, bool) {
    put_all(etcd, [("a", "1"), ("b", "1")]).await;
    let first_seen = OnceLock::new();
    let stm = etcd.stm().isolation(isolation);
    let attempts = stm
        .run(async |tx| {
            let a = read(&tx, "a").await?;
            if tx.attempt() == 1 {
                put_all(etcd, [("a", "2"), ("b", "2")]).await;
            }
            let b = read(&tx, "b").await?;
            first_seen.get_or_init(|| a + &b);
            tx.put("c", "written");
            Ok::<_, Error>(tx.attempt())
        })
        .await
        .unwrap();
    (first_seen.into_inner().unwrap(), attempts == 1)
}

#[tokio::test]
async fn snapshots_forbid_read_skew_in_every_attempt() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for isolation in [Isolation::SerializableSnapshot, Isolation::Serializable] {
        assert_eq!(read_both(&etcd, isolation).await, ("11".into(), false));
    }
}

#[tokio::test]
async fn repeatable_reads_allow_read_skew_but_do_not_commit_it() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let seen = read_both(&etcd, Isolation::RepeatableReads).await;
    assert_eq!(seen, ("12".into(), false));
    let seen = read_both(&etcd, Isolation::ReadCommitted).await;
    assert_eq!(seen, ("12".into(), true));
}

#[tokio::test]
async fn only_read_committed_reads_a_key_differently() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for isolation in ALL_LEVELS {
        put_all(&etcd, [("a", "1")]).await;
        let stm = etcd.stm().isolation(isolation).max_attempts(1);
        let seen = OnceLock::new();
        let result = stm
            .run(async |tx| {
                let mut values = read(&tx, "a").await?;
                etcd.put("a", "2").await?;
                values += &read(&tx, "a").await?;
                values += &text(tx.get_many(["a"]).await?[0].as_ref().unwrap());
                seen.set(values).unwrap();
                Ok::<_, Error>(())
            })
            .await;
        let repeats = isolation != Isolation::ReadCommitted;
        assert_eq!(
            seen.get().unwrap(),
            if repeats { "111" } else { "122" },
            "{isolation:?}"
        );
        // Without writes, only reads without a snapshot can be inconsistent.
        let conflicts = isolation == Isolation::RepeatableReads;
        assert_eq!(result.is_err(), conflicts, "{isolation:?}");
    }
}

#[tokio::test]
async fn only_read_committed_loses_updates() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for isolation in ALL_LEVELS {
        put_all(&etcd, [("n", "0")]).await;
        etcd.stm()
            .isolation(isolation)
            .run(async |tx| {
                let n: i32 = read(&tx, "n").await?.parse().unwrap();
                if tx.attempt() == 1 {
                    etcd.put("n", "10").await?;
                }
                tx.put("n", (n + 1).to_string());
                Ok::<_, Error>(())
            })
            .await
            .unwrap();
        let lost = isolation == Isolation::ReadCommitted;
        let expected = if lost { "1" } else { "11" };
        assert_eq!(value(&etcd, "n").await.unwrap(), expected, "{isolation:?}");
    }
}

/// Two doctors may both go off duty only if each believes that the other one stays.
#[tokio::test]
async fn only_read_committed_allows_write_skew() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for isolation in ALL_LEVELS {
        put_all(&etcd, [("duty/ann", "on"), ("duty/bob", "on")]).await;
        let stm = etcd.stm().isolation(isolation);
        let leave = async |name: &'static str, interfere: bool| {
            let other = stm.clone();
            stm.clone()
                .run(async |tx| {
                    let doctors = ["duty/ann", "duty/bob"];
                    let on = tx.get_many(doctors).await?;
                    if interfere && tx.attempt() == 1 {
                        other
                            .clone()
                            .run(async |tx| {
                                tx.get_many(doctors).await?;
                                tx.put("duty/bob", "off");
                                Ok::<_, Error>(())
                            })
                            .await?;
                    }
                    if on.iter().flatten().filter(|duty| **duty == "on").count() == 2 {
                        tx.put(name, "off");
                    }
                    Ok::<_, Error>(())
                })
                .await
                .unwrap();
        };
        leave("duty/ann", true).await;
        let nobody = value(&etcd, "duty/ann").await.unwrap() == "off";
        let allowed = isolation == Isolation::ReadCommitted;
        assert_eq!(nobody, allowed, "{isolation:?}");
    }
}

#[tokio::test]
async fn prefix_reads_forbid_phantoms() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for (name, change) in [
        ("added", "jobs/3"),
        ("changed", "jobs/1"),
        ("removed", "-jobs/2"),
    ] {
        for isolation in ALL_LEVELS {
            etcd.delete("jobs/").prefix().await.unwrap();
            put_all(&etcd, [("jobs/1", "x"), ("jobs/2", "x")]).await;
            let stm = etcd.stm().isolation(isolation);
            let attempts = stm
                .run(async |tx| {
                    let count = tx.get_prefix("jobs/").await?.len();
                    if tx.attempt() == 1 {
                        match change.strip_prefix('-') {
                            Some(key) => drop(etcd.delete(key).await?),
                            None => drop(etcd.put(change, "y").await?),
                        }
                        // The same attempt reads the prefix, and keys below it, as before.
                        let repeats = isolation != Isolation::ReadCommitted;
                        assert_eq!(
                            tx.get_prefix("jobs/").await?.len() == count,
                            repeats || name == "changed"
                        );
                        assert_eq!(
                            tx.get("jobs/3").await?.is_none(),
                            repeats || name != "added"
                        );
                    }
                    tx.put("count", count.to_string());
                    Ok::<_, Error>(tx.attempt())
                })
                .await
                .unwrap();
            let expected = if isolation == Isolation::ReadCommitted {
                1
            } else {
                2
            };
            assert_eq!(attempts, expected, "{isolation:?}: {name}");
        }
    }
}

#[tokio::test]
async fn reads_of_single_keys_allow_phantoms() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for isolation in ALL_LEVELS {
        etcd.delete("jobs/").prefix().await.unwrap();
        put_all(&etcd, [("jobs/1", "x")]).await;
        let stm = etcd.stm().isolation(isolation);
        let attempts = stm
            .run(async |tx| {
                read(&tx, "jobs/1").await?;
                etcd.put("jobs/2", "added").await?;
                tx.put("count", "1");
                Ok::<_, Error>(tx.attempt())
            })
            .await
            .unwrap();
        assert_eq!(attempts, 1, "{isolation:?}");
    }
}

#[tokio::test]
async fn uncommitted_writes_are_visible_only_to_their_attempt() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(Duration::from_secs(60)).await.unwrap();
    for isolation in ALL_LEVELS {
        etcd.delete("").prefix().await.unwrap();
        put_all(&etcd, [("d/old", "1"), ("d/gone", "1")]).await;
        let stm = etcd.stm().isolation(isolation);
        let listed = stm
            .run(async |tx| {
                tx.put("d/new", "1");
                tx.put_with_lease("d/old", "2", &lease);
                tx.delete("d/gone");
                assert_eq!(value(&etcd, "d/new").await, None);
                assert_eq!(value(&etcd, "d/gone").await.unwrap(), "1");
                assert_eq!(tx.get("d/gone").await?, None);
                assert_eq!(tx.get("d/old").await?.unwrap(), "2");
                tx.get_prefix("d/").await
            })
            .await
            .unwrap();
        let listed: Vec<_> = listed
            .iter()
            .map(|(key, value)| text(key) + &text(value))
            .collect();
        assert_eq!(listed, ["d/new1", "d/old2"], "{isolation:?}");
        let found = etcd.get("d/").prefix().await.unwrap();
        let leases: Vec<_> = found
            .kvs
            .iter()
            .map(|kv| (text(&kv.key), kv.lease))
            .collect();
        assert_eq!(leases, [("d/new".into(), 0), ("d/old".into(), lease.id())]);
    }
}

#[derive(Debug, PartialEq)]
enum AppError {
    Refused,
    Etcd(ErrorKind, Outcome),
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Etcd(error.kind(), error.outcome())
    }
}

async fn revision(etcd: &Client) -> i64 {
    etcd.get("none").await.unwrap().header.revision
}

#[tokio::test]
async fn failed_closure_writes_nothing() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let before = revision(&etcd).await;
    let refused = etcd
        .stm()
        .run(async |tx| {
            tx.put("a", "1");
            Err::<(), _>(AppError::Refused)
        })
        .await;
    assert_eq!(refused, Err(AppError::Refused));
    let invalid = etcd
        .stm()
        .run(async |tx| {
            tx.get("").await?;
            Ok::<_, AppError>(())
        })
        .await;
    let not_sent = |kind| Err(AppError::Etcd(kind, Outcome::NotSent));
    assert_eq!(invalid, not_sent(ErrorKind::EmptyKey));
    let invalid = etcd.stm().run(async |tx| {
        tx.put("", "1");
        Ok::<_, AppError>(())
    });
    assert_eq!(invalid.await, not_sent(ErrorKind::EmptyKey));
    assert_eq!(revision(&etcd).await, before);
}

#[tokio::test]
async fn read_only_transaction_writes_nothing() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    put_all(&etcd, [("a", "1"), ("b", "1")]).await;
    let before = revision(&etcd).await;
    for isolation in ALL_LEVELS {
        let stm = etcd.stm().isolation(isolation);
        let sum =
            stm.run(async |tx| Ok::<_, Error>(read(&tx, "a").await? + &read(&tx, "b").await?));
        assert_eq!(sum.await.unwrap(), "11");
    }
    assert_eq!(revision(&etcd).await, before);
}

#[tokio::test]
async fn conflicts_end_at_the_bounds() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let attempts = AtomicU32::new(0);
    let conflicting = async |tx: Transaction| {
        attempts.fetch_add(1, SeqCst);
        read(&tx, "a").await?;
        etcd.put("a", "other").await?;
        tx.put("a", "mine");
        Ok::<_, AppError>(())
    };
    let result = etcd.stm().max_attempts(3).run(&conflicting).await;
    let conflict = Err(AppError::Etcd(ErrorKind::Conflict, Outcome::Rejected));
    assert_eq!((attempts.load(SeqCst), &result), (3, &conflict));
    let result = etcd
        .stm()
        .timeout(Duration::from_millis(300))
        .run(&conflicting);
    // Which one depends on whether the time ends between two attempts or during one.
    let at_timeout = [ErrorKind::Conflict, ErrorKind::DeadlineExceeded];
    let error = result.await.unwrap_err();
    let is_expected = matches!(error, AppError::Etcd(kind, _) if at_timeout.contains(&kind));
    assert!(is_expected, "{error:?}");
    assert_eq!(value(&etcd, "a").await.unwrap(), "other");
    let hanging = etcd.stm().timeout(Duration::from_millis(100));
    let result = hanging.run(async |tx| {
        tx.put("a", "mine");
        std::future::pending::<()>().await;
        Ok::<_, AppError>(())
    });
    let not_sent = Err(AppError::Etcd(
        ErrorKind::DeadlineExceeded,
        Outcome::NotSent,
    ));
    assert_eq!(result.await, not_sent);
}

#[tokio::test]
async fn too_large_transaction_is_not_sent() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let keys = || (0..129).map(|n| format!("k{n:03}"));
    let write_all = etcd.stm().run(async |tx| {
        keys().for_each(|key| tx.put(key, "1"));
        Ok::<_, Error>(())
    });
    let error = write_all.await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::TooManyOps, Outcome::NotSent)
    );
    assert!(error.to_string().contains("129 writes"), "{error}");
    let read_all = etcd.stm().run(async |tx| {
        assert_eq!(tx.get_many(keys()).await?.len(), 129);
        tx.put("sum", "0");
        Ok::<_, Error>(())
    });
    let error = read_all.await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::TooManyOps, Outcome::NotSent)
    );
    assert_eq!(value(&etcd, "sum").await, None);
    let only_reads = etcd.stm().run(async |tx| tx.get_many(keys()).await);
    assert_eq!(only_reads.await.unwrap().len(), 129);
}

#[tokio::test]
async fn compacted_snapshot_is_replaced_by_a_newer_one() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    put_all(&etcd, [("a", "1"), ("b", "1")]).await;
    let attempts = etcd
        .stm()
        .run(async |tx| {
            read(&tx, "a").await?;
            if tx.attempt() == 1 {
                let newest = etcd.put("c", "1").await?.header.revision;
                etcd.compact(newest).await?;
            }
            read(&tx, "b").await?;
            tx.put("a", "2");
            Ok::<_, Error>(tx.attempt())
        })
        .await
        .unwrap();
    assert_eq!(attempts, 2);
}

#[tokio::test]
async fn attempt_with_failed_read_is_not_committed() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    put_all(&etcd, [("a", "1"), ("b", "1")]).await;
    for isolation in ALL_LEVELS {
        let stm = etcd.stm().isolation(isolation);
        let ignored = stm.run(async |tx| {
            assert!(tx.get("").await.is_err());
            tx.put("c", "1");
            Ok::<_, AppError>(())
        });
        let not_sent = AppError::Etcd(ErrorKind::EmptyKey, Outcome::NotSent);
        assert_eq!(ignored.await, Err(not_sent), "{isolation:?}");
        assert_eq!(value(&etcd, "c").await, None, "{isolation:?}");
    }
    let compacting = async |tx: Transaction| {
        read(&tx, "a").await?;
        let newest = etcd.put("d", "1").await?.header.revision;
        etcd.compact(newest).await?;
        for read in [tx.get("b").await.err(), tx.get_many(["b"]).await.err()] {
            assert_eq!(read.unwrap().kind(), ErrorKind::Compacted);
        }
        tx.put("c", "1");
        Ok::<_, Error>(())
    };
    let error = etcd.stm().max_attempts(2).run(compacting).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let text = error.to_string();
    assert!(
        text.contains("compacted") && !text.contains("clients"),
        "{text}"
    );
    assert_eq!(value(&etcd, "c").await, None);
}

#[tokio::test]
async fn dropped_transaction_writes_nothing() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let before = revision(&etcd).await;
    let (reached, at_end) = tokio::sync::oneshot::channel();
    let client = etcd.clone();
    let running = tokio::spawn(async move {
        let reached = Mutex::new(Some(reached));
        client
            .stm()
            .run(async |tx| {
                tx.put("a", "1");
                reached.lock().unwrap().take().unwrap().send(()).unwrap();
                std::future::pending::<()>().await;
                Ok::<_, Error>(())
            })
            .await
    });
    at_end.await.unwrap();
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(revision(&etcd).await, before);
}

#[derive(Clone, actix::Message)]
#[rtype(result = "actix_etcd::Result<u32>")]
struct Increment(&'static str);

impl EtcdRequest<Client> for Increment {
    type Response = u32;

    fn name(&self) -> &'static str {
        "Increment"
    }

    fn send_with(
        self,
        etcd: &Client,
    ) -> Pin<Box<dyn Future<Output = actix_etcd::Result<u32>> + Send>> {
        let stm = etcd.stm();
        Box::pin(async move {
            stm.run(async |tx| {
                let n = read(&tx, self.0).await?.parse().unwrap_or(0) + 1;
                tx.put(self.0, n.to_string());
                Ok::<_, Error>(n)
            })
            .await
        })
    }
}

#[actix::test]
async fn actors_run_transactions_as_messages() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client).start();
    let increments = (0..10).map(|_| etcd.send(Increment("n")));
    let increments: Vec<_> = increments.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for increment in increments {
        results.push(increment.await.unwrap().unwrap().unwrap());
    }
    results.sort_unstable();
    assert_eq!(results, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn commit_without_response_is_applied_once() {
    for fate in [TxnFate::ResponseLost, TxnFate::Delayed] {
        let (store, etcd) = ScriptedStore::start().await;
        // Creates what later writes of the client are marked with.
        etcd.put("other", "").exactly_once().await.unwrap();
        let met = Arc::new(AtomicU32::new(0));
        let counted = met.clone();
        store.on_txn(move |request| {
            if puts_below(request, b"n") && counted.fetch_add(1, SeqCst) == 0 {
                fate
            } else {
                TxnFate::Applied
            }
        });
        let stm = etcd.stm().isolation(Isolation::Serializable);
        let attempts = stm
            .run(async |tx| {
                let n: u32 = read(&tx, "n").await?.parse().unwrap_or_default();
                tx.put("n", (n + 1).to_string());
                Ok::<_, Error>(tx.attempt())
            })
            .await
            .unwrap();
        store.apply_delayed();
        assert!(met.load(SeqCst) > 0, "{fate:?}");
        assert_eq!(attempts, 1, "{fate:?}");
        assert_eq!(value(&etcd, "n").await.unwrap(), "1", "{fate:?}");
    }
}

#[tokio::test]
async fn largest_transaction_is_accepted_by_etcd() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mutex = etcd.mutex("lock").await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let keys = || (0..124).map(|n| format!("k{n:03}"));
    etcd.stm()
        .fenced_by(&guard)
        .run(async |tx| {
            tx.get_many(keys()).await?;
            keys().for_each(|key| tx.put(key, "1"));
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    let written = etcd.get("k").prefix().count_only().await.unwrap();
    assert_eq!(written.count, 124);
}

#[tokio::test]
async fn fenced_transaction_needs_the_lock() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mutex = etcd.mutex("lock").await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let stm = etcd.stm().fenced_by(&guard);
    let write = async |tx: Transaction| {
        tx.put("a", tx.attempt().to_string());
        Ok::<_, AppError>(())
    };
    assert_eq!(stm.clone().run(write).await, Ok(()));
    guard.unlock().await.unwrap();
    let lost = Err(AppError::Etcd(ErrorKind::LockLost, Outcome::Rejected));
    assert_eq!(stm.run(write).await, lost);
    let found = etcd.get("a").await.unwrap();
    assert_eq!(found.first().unwrap().version, 1);
}
