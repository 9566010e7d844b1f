//! A counter in etcd that only one at a time may count up, and the record of who did: what mutual exclusion is judged
//! by. The counter shows what reached the store, the intervals who worked at the same time.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::{Client, Outcome, kv::put, recipes::mutex::Ownership};
use testbed::Fault;

use crate::support::{node_links::OwnLinks, wait::until};

pub type Shared = Arc<Mutex<Record>>;

/// What all holders did.
#[derive(Default)]
pub struct Record {
    /// From when to when somebody worked.
    intervals: Vec<(Instant, Instant)>,
    /// Who does now.
    at_work: Vec<usize>,
    /// How often somebody lost what it held, or could have held.
    pub losses: usize,
    /// The revision and the token of each write that was done.
    pub writes: Vec<(i64, i64)>,
    unknown: usize,
}

impl Record {
    /// Who works now, of those with a number.
    pub fn at_work(&self) -> Option<usize> {
        self.at_work.last().copied()
    }

    /// Fails where two worked at once, somebody wrote with an old token, or a count was lost.
    pub fn check(&mut self, counted: usize) {
        println!(
            "{} holders, {} losses, {} writes, {} unknown, counted {counted}",
            self.intervals.len(),
            self.losses,
            self.writes.len(),
            self.unknown,
        );
        self.intervals.sort();
        for pair in self.intervals.windows(2) {
            let overlap = pair[0].1.saturating_duration_since(pair[1].0);
            assert!(overlap.is_zero(), "two worked at once for {overlap:?}");
        }
        self.writes.sort_unstable();
        let in_order = self.writes.is_sorted_by_key(|write| write.1);
        assert!(in_order, "a stale holder wrote");
        let (least, most) = (self.writes.len(), self.writes.len() + self.unknown);
        assert!(
            (least..=most).contains(&counted),
            "{counted} of {least}..={most}"
        );
    }
}

/// Notes the end of the work, however it ends.
pub struct Working {
    who: usize,
    since: Instant,
    record: Shared,
}

impl Working {
    pub fn start(who: usize, record: &Shared) -> Self {
        record.lock().unwrap().at_work.push(who);
        Self {
            who,
            since: Instant::now(),
            record: record.clone(),
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let interval = (self.since, Instant::now());
        let mut record = self.record.lock().unwrap();
        record.intervals.push(interval);
        record.at_work.retain(|who| *who != self.who);
    }
}

/// Cuts whoever works off until somebody else does: the others reach etcd, and it does not.
pub async fn moves_when_cut_off(record: &Shared, links: &[OwnLinks]) {
    until("somebody works", || {
        record.lock().unwrap().at_work().is_some()
    })
    .await;
    let alone = record.lock().unwrap().at_work().unwrap();
    links[alone].set(Fault::Freeze);
    until("somebody else works", || {
        let at_work = record.lock().unwrap().at_work();
        at_work.is_some_and(|who| who != alone)
    })
    .await;
    links[alone].set(Fault::None);
}

/// A write that may have been done without an answer: it failed, or the work was cancelled under way.
struct Writing {
    may_arrive: bool,
    record: Shared,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.record.lock().unwrap().unknown += usize::from(self.may_arrive);
    }
}

/// What the counter says.
pub async fn counted(etcd: &Client) -> actix_etcd::Result<usize> {
    let found = etcd.get("counter").await?;
    let value = found.first().map(|kv| kv.value.clone());
    Ok(value.map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap()))
}

/// Counts up, by a read and a write that lose counts if two do it at once. Tells whether the work may go on: where a
/// write may arrive later, it must not be lost under the next count, so whoever did it ends, and what is held with it.
pub async fn count_up(etcd: &Client, held: &Ownership, record: &Shared) -> bool {
    // An outage is no reason to stop working: only the loss of what is held is.
    let before = loop {
        match counted(etcd).await {
            Ok(before) => break before,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let write = put("counter", (before + 1).to_string());
    let mut writing = Writing {
        may_arrive: true,
        record: record.clone(),
    };
    match held.txn().then([write]).await {
        Ok(done) => {
            writing.may_arrive = false;
            if done.succeeded {
                let write = (done.header.revision, held.token());
                record.lock().unwrap().writes.push(write);
            }
            done.succeeded
        }
        Err(error) => {
            writing.may_arrive = error.outcome() == Outcome::Unknown;
            false
        }
    }
}
