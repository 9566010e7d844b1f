//! Mutual exclusion while members and links fail at random: by a counter that only a holder writes, and by the clock.
//!
//! `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::{Client, Outcome, kv::put, recipes::mutex::Held};
use testbed::{Chaos, ChaosKind, Cluster};
use tokio::sync::watch;

const TTL: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// What all holders did.
#[derive(Default)]
struct Record {
    /// From when to when somebody worked under the lock.
    intervals: Vec<(Instant, Instant)>,
    /// The revision and the token of each write that was done.
    writes: Vec<(i64, i64)>,
    unknown: usize,
    cancelled: usize,
}

/// Notes the end of the work, however it ends.
struct Working {
    since: Instant,
    record: Arc<Mutex<Record>>,
}

impl Drop for Working {
    fn drop(&mut self) {
        let interval = (self.since, Instant::now());
        self.record.lock().unwrap().intervals.push(interval);
    }
}

/// A write that may have been done without an answer: it failed, or the work was cancelled under way.
struct Writing {
    may_arrive: bool,
    record: Arc<Mutex<Record>>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.record.lock().unwrap().unknown += usize::from(self.may_arrive);
    }
}

async fn count(etcd: &Client) -> Option<usize> {
    let found = etcd.get("counter").await.ok()?;
    let value = found
        .first()
        .map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
    Some(value.map_or(0, |value| value.parse().unwrap()))
}

/// Counts up under the lock, by a read and a write that lose counts if two holders do it at once.
async fn work(etcd: Client, held: Held, record: Arc<Mutex<Record>>) {
    let _working = Working {
        since: Instant::now(),
        record: record.clone(),
    };
    for _ in 0..3 {
        let Some(before) = count(&etcd).await else {
            return;
        };
        let write = put("counter", (before + 1).to_string());
        let mut writing = Writing {
            may_arrive: true,
            record: record.clone(),
        };
        match held.txn().then([write]).await {
            Ok(done) => {
                writing.may_arrive = false;
                if !done.succeeded {
                    return;
                }
                let write = (done.header.revision, held.token());
                record.lock().unwrap().writes.push(write);
            }
            Err(error) => {
                writing.may_arrive = error.outcome() == Outcome::Unknown;
                // Should it arrive later, it must not be lost under the next count: the work ends, and the lock with
                // it.
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn compete(endpoints: Vec<String>, record: Arc<Mutex<Record>>, stop: watch::Receiver<bool>) {
    let etcd = Client::connect(endpoints).await.unwrap();
    while !*stop.borrow() {
        let Ok(session) = etcd.session(TTL).await else {
            continue;
        };
        let mutex = session.mutex("l");
        while !*stop.borrow() {
            let (etcd, shared) = (etcd.clone(), record.clone());
            let done = mutex.scope(move |held| work(etcd, held, shared)).await;
            if done.is_err() {
                record.lock().unwrap().cancelled += 1;
                break;
            }
        }
    }
    etcd.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_works_under_a_lock_that_somebody_else_holds() {
    let cluster = Cluster::start(3).await;
    let record = Arc::new(Mutex::new(Record::default()));
    let (stop, stopped) = watch::channel(false);
    let competitors: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn(compete(
                cluster.endpoints(),
                record.clone(),
                stopped.clone(),
            ))
        })
        .collect();
    // All members at once, for longer than a lease: holders must lose their locks, too.
    let chaos = Chaos::from_env("mutex")
        .bad_at_once(3)
        .lasts(SECOND / 5, 4 * SECOND);
    let faults = chaos.run(&cluster, &ChaosKind::ALL).await;
    let before = record.lock().unwrap().writes.len();
    crate::wait::until("work goes on after the faults", || {
        record.lock().unwrap().writes.len() > before
    })
    .await;
    stop.send(true).unwrap();
    for competitor in competitors {
        competitor.await.unwrap();
    }
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let counted = count(&etcd).await.unwrap();
    let mut record = record.lock().unwrap();
    println!(
        "{} faults, {} holders, {} writes, {} unknown, {} cancelled",
        faults.len(),
        record.intervals.len(),
        record.writes.len(),
        record.unknown,
        record.cancelled
    );
    record.intervals.sort();
    for pair in record.intervals.windows(2) {
        let overlap = pair[0].1.saturating_duration_since(pair[1].0);
        assert!(overlap.is_zero(), "two held the lock for {overlap:?}");
    }
    record.writes.sort_unstable();
    assert!(
        record.writes.is_sorted_by_key(|write| write.1),
        "a stale holder wrote"
    );
    let (least, most) = (record.writes.len(), record.writes.len() + record.unknown);
    assert!(
        (least..=most).contains(&counted),
        "{counted} of {least}..={most}"
    );
}
