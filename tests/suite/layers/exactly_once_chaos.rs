//! Exactly-once writes while members, links and the leader fail at random, and while responses are lost.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Error, Outcome, kv::put};
use testbed::{Chaos, ChaosKind, Cluster, Direction, Fault};
use tokio::task::JoinSet;

/// Longer than any outage of these tests.
const TIMEOUT: Duration = Duration::from_secs(30);
const WRITERS: usize = 16;
const COUNTER: &str = "counter";

/// What a writer knows about one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    AppliedAt(i64),
    NotApplied,
    /// The future was dropped.
    Abandoned,
}

#[derive(Default)]
struct Journal {
    writes: HashMap<String, Known>,
    increments: u64,
    /// Writes whose response was lost, and whose marker was found.
    resolved: u64,
}

impl Journal {
    fn add(&mut self, key: String, revision: Result<i64, Error>) {
        let known = match revision {
            Ok(revision) => Known::AppliedAt(revision),
            Err(error) => {
                assert_ne!(error.outcome(), Outcome::Unknown, "{key}: {error}");
                Known::NotApplied
            }
        };
        self.writes.insert(key, known);
    }
}

/// Writes new keys in different ways until told to stop.
async fn write_until(etcd: Client, writer: usize, stop: Arc<AtomicBool>) -> Journal {
    let mut journal = Journal::default();
    for n in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("w/{writer}/{n}");
        match n % 4 {
            0 | 1 => {
                let write = etcd.put(&key, "v").timeout(TIMEOUT).exactly_once().await;
                journal.resolved +=
                    u64::from(write.as_ref().is_ok_and(|put| put.response.is_none()));
                journal.add(key, write.map(|applied| applied.revision));
            }
            2 => {
                let created = etcd.create(&key, "v").timeout(TIMEOUT).await;
                let revision = created.map(|created| created.revision().expect("the key is new"));
                journal.add(key, revision);
            }
            _ => {
                let write = etcd
                    .txn()
                    .then(put(&key, "v"))
                    .timeout(TIMEOUT)
                    .exactly_once();
                let limit = Duration::from_millis(fastrand::u64(1..1000));
                match tokio::time::timeout(limit, write).await {
                    Ok(applied) => journal.add(key, applied.map(|applied| applied.revision)),
                    Err(_) => {
                        journal.writes.insert(key, Known::Abandoned);
                    }
                }
            }
        }
    }
    journal
}

/// Increments one counter until told to stop.
async fn count_until(etcd: Client, stop: Arc<AtomicBool>) -> Journal {
    let mut journal = Journal::default();
    while !stop.load(Ordering::Relaxed) {
        let increment = etcd.modify(COUNTER, |current| {
            let count: u64 = current.map_or(0, |kv| kv.value_str().unwrap().parse().unwrap());
            (count + 1).to_string()
        });
        match increment.max_attempts(1000).timeout(TIMEOUT).await {
            Ok(_) => journal.increments += 1,
            Err(error) => assert_ne!(error.outcome(), Outcome::Unknown, "{error}"),
        }
    }
    journal
}

/// Loses the responses of a random member, again and again: etcd applies writes, and the connection is reset before the
/// responses arrive.
async fn lose_responses(cluster: Cluster, seed: u64, stop: Arc<AtomicBool>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let link = cluster
            .member(rng.usize(..cluster.len()))
            .client_link()
            .clone();
        // Faults of the link that are active already stay as they are.
        if link.fault() == Fault::None {
            link.set(Fault::HalfOpen(Direction::ToClient));
            tokio::time::sleep(Duration::from_millis(rng.u64(5..100))).await;
            link.reset_now();
            link.heal();
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(50..500))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_write_is_applied_once_or_surely_not() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_until(etcd.clone(), writer, stop.clone()));
    }
    for _ in 0..2 {
        writers.spawn(count_until(etcd.clone(), stop.clone()));
    }
    let chaos = Chaos::from_env("exactly once");
    let losses = tokio::spawn(lose_responses(cluster.clone(), chaos.seed(), stop.clone()));
    let faults = chaos.run(&cluster, &ChaosKind::ALL).await;
    stop.store(true, Ordering::Relaxed);
    losses.await.unwrap();
    cluster.heal();
    let mut all = Journal::default();
    while let Some(journal) = writers.join_next().await {
        let journal = journal.unwrap();
        all.writes.extend(journal.writes);
        all.increments += journal.increments;
        all.resolved += journal.resolved;
    }
    cluster.wait_healthy().await;
    let not_applied = all
        .writes
        .values()
        .filter(|known| **known == Known::NotApplied)
        .count();
    let abandoned = all
        .writes
        .values()
        .filter(|known| **known == Known::Abandoned)
        .count();
    println!(
        "{} writes, {not_applied} not applied, {abandoned} abandoned, {} resolved by marker, {} increments, {} faults",
        all.writes.len(),
        all.resolved,
        all.increments,
        faults.len()
    );
    assert!(all.resolved > 0, "no response was lost");

    let mut found = HashMap::new();
    let mut keys = etcd.get("w/").prefix().stream();
    while let Some(kv) = tokio_stream::StreamExt::next(&mut keys).await {
        let kv = kv.unwrap();
        assert_eq!(kv.version, 1, "{:?} was written twice", kv.key);
        found.insert(kv.key_str().unwrap().to_owned(), kv.mod_revision);
    }
    for (key, known) in &all.writes {
        let revision = found.remove(key);
        match known {
            Known::AppliedAt(expected) => assert_eq!(revision, Some(*expected), "{key}"),
            Known::NotApplied => assert_eq!(revision, None, "{key} was applied"),
            Known::Abandoned => {}
        }
    }
    assert!(found.is_empty(), "{found:?}");
    let counter = etcd.get(COUNTER).await.unwrap().kvs.remove(0);
    assert_eq!(counter.value_str().unwrap(), all.increments.to_string());
}
