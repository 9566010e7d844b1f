//! Mutual exclusion while members and links fail at random: by a counter that only a holder writes, and by the clock.
//!
//! `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.

use std::time::Duration;

use actix_etcd::{Client, recipes::mutex::Held};
use testbed::{Chaos, ChaosKind, Cluster};
use tokio::sync::watch;

use crate::support::{
    exclusion_counter::{Shared, Working, count_up, counted, moves_when_cut_off},
    node_links::{OwnLinks, cut_at_random},
    wait::until,
};

const TTL: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

/// What competitors are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Play {
    /// Hold the lock for a moment.
    Share,
    /// Hold it until it is lost.
    Hold,
    Stop,
}

#[derive(Clone)]
struct Competitor {
    who: usize,
    etcd: Client,
    record: Shared,
    play: watch::Receiver<Play>,
}

impl Competitor {
    async fn compete(self) {
        while *self.play.borrow() != Play::Stop {
            let Ok(session) = self.etcd.session(TTL).await else {
                continue;
            };
            let mutex = session.mutex("l");
            while *self.play.borrow() != Play::Stop {
                let this = self.clone();
                let done = mutex.scope(move |held| this.work(held)).await;
                if done.is_err() {
                    self.record.lock().unwrap().losses += 1;
                    break;
                }
            }
        }
        self.etcd.shutdown().await;
    }

    async fn work(self, held: Held) {
        let _working = Working::start(self.who, &self.record);
        let mut times = 0;
        while times < 3 || *self.play.borrow() == Play::Hold {
            if !count_up(&self.etcd, &held, &self.record).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            times += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_works_under_a_lock_that_somebody_else_holds() {
    let cluster = Cluster::start(3).await;
    let record = Shared::default();
    let (tell, play) = watch::channel(Play::Share);
    let links: Vec<_> = (0..3).map(|_| OwnLinks::to(&cluster)).collect();
    let mut competitors = Vec::new();
    for (who, own) in links.iter().enumerate() {
        let competitor = Competitor {
            who,
            etcd: Client::connect(own.endpoints()).await.unwrap(),
            record: record.clone(),
            play: play.clone(),
        };
        competitors.push(tokio::spawn(competitor.compete()));
    }
    // All members at once, for longer than a lease: holders must lose their locks, too. And one competitor at a time,
    // while the others reach whoever is left.
    let chaos = Chaos::from_env("mutex")
        .max_faulty_members(3)
        .fault_duration(SECOND / 5, 4 * SECOND);
    let (faults, cuts) = tokio::join!(
        chaos.run(&cluster, &ChaosKind::ALL),
        cut_at_random(&links, chaos.seed(), chaos.duration(), TTL),
    );
    println!("{} faults, {cuts} cuts", faults.len());
    let (worked, lost) = {
        let record = record.lock().unwrap();
        (record.writes.len(), record.losses)
    };
    until("work goes on after the faults", || {
        record.lock().unwrap().writes.len() > worked
    })
    .await;
    tell.send_replace(Play::Hold);
    moves_when_cut_off(&record, &links).await;
    until("who was cut off has noticed", || {
        record.lock().unwrap().losses > lost
    })
    .await;
    tell.send_replace(Play::Stop);
    for competitor in competitors {
        competitor.await.unwrap();
    }
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let counted = counted(&etcd).await.unwrap();
    record.lock().unwrap().check(counted);
}
