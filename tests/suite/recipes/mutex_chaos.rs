//! Mutual exclusion while members and links fail at random. A counter that only the holder writes, and the times of its
//! work, show whether two nodes ever held the lock at the same time.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use std::time::Duration;

use actix_etcd::{Client, recipes::mutex::Ownership};
use testbed::{Chaos, ChaosKind, Cluster};
use tokio::sync::watch;

use crate::support::{
    exclusion_counter::{
        SharedRecord, WorkPeriod, cut_off_working_node, increment_counter, read_counter,
    },
    node_links::{NodeLinks, cut_links_randomly},
    wait::until,
};

const TTL: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// How competitors use the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Hold the lock for a moment.
    TakeTurns,
    /// Hold the lock until it is lost.
    Hold,
    Stop,
}

#[derive(Clone)]
struct Competitor {
    node: usize,
    etcd: Client,
    record: SharedRecord,
    mode: watch::Receiver<Mode>,
}

impl Competitor {
    async fn compete(self) {
        while *self.mode.borrow() != Mode::Stop {
            let Ok(session) = self.etcd.session(TTL).await else {
                continue;
            };
            let mutex = session.mutex("l");
            while *self.mode.borrow() != Mode::Stop {
                let this = self.clone();
                let worked = mutex.scope(move |held| this.work(held)).await;
                if worked.is_err() {
                    self.record.lock().unwrap().losses += 1;
                    break;
                }
            }
        }
        self.etcd.shutdown().await;
    }

    async fn work(self, held: Ownership) {
        let _period = WorkPeriod::start(self.node, &self.record);
        let mut increments = 0;
        while increments < 3 || *self.mode.borrow() == Mode::Hold {
            if !increment_counter(&self.etcd, &held, &self.record).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            increments += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_holders_never_overlap_during_random_faults() {
    let cluster = Cluster::start(3).await;
    let record = SharedRecord::default();
    let (set_mode, mode) = watch::channel(Mode::TakeTurns);
    let links: Vec<_> = (0..3)
        .map(|_| NodeLinks::to(&cluster.endpoints()))
        .collect();
    let mut competitors = Vec::new();
    for (node, links) in links.iter().enumerate() {
        let competitor = Competitor {
            node,
            etcd: Client::connect(links.endpoints()).await.unwrap(),
            record: record.clone(),
            mode: mode.clone(),
        };
        competitors.push(tokio::spawn(competitor.compete()));
    }
    // Up to all members fail at once, for longer than a lease, so that holders lose their locks. In addition, one
    // competitor at a time is cut off.
    let chaos = Chaos::from_env("mutex")
        .max_faulty_members(3)
        .fault_duration(SECOND / 5, 4 * SECOND);
    let (faults, cuts) = tokio::join!(
        chaos.run(&cluster, &ChaosKind::ALL),
        cut_links_randomly(&links, chaos.seed(), chaos.duration(), TTL),
    );
    println!("{} faults, {cuts} cuts", faults.len());
    let (writes, losses) = {
        let record = record.lock().unwrap();
        (record.writes.len(), record.losses)
    };
    until("a holder works after the faults", || {
        record.lock().unwrap().writes.len() > writes
    })
    .await;
    set_mode.send_replace(Mode::Hold);
    cut_off_working_node(&record, &links).await;
    until("the cut off holder has noticed the loss", || {
        record.lock().unwrap().losses > losses
    })
    .await;
    set_mode.send_replace(Mode::Stop);
    for competitor in competitors {
        competitor.await.unwrap();
    }
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let counter = read_counter(&etcd).await.unwrap();
    record.lock().unwrap().check(counter);
}
