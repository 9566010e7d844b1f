//! Mutual exclusion while members and links fail at random: by a counter that only a holder writes, and by the clock.
//!
//! `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.

use std::time::Duration;

use actix_etcd::{Client, recipes::mutex::Held};
use testbed::{Chaos, ChaosKind, Cluster};
use tokio::sync::watch;

use crate::counter::{Shared, Working, count_up, counted};

const TTL: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

async fn work(etcd: Client, held: Held, record: Shared) {
    let _working = Working::start(&record);
    for _ in 0..3 {
        if !count_up(&etcd, &held, &record).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn compete(endpoints: Vec<String>, record: Shared, stop: watch::Receiver<bool>) {
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
                break;
            }
        }
    }
    etcd.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_works_under_a_lock_that_somebody_else_holds() {
    let cluster = Cluster::start(3).await;
    let record = Shared::default();
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
    println!("{} faults", faults.len());
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
    let counted = counted(&etcd).await.unwrap();
    record.lock().unwrap().check(counted);
}
