//! Checks mutual exclusion with a counter in etcd that only the current holder may increment, and a record of all
//! holders. The counter shows which writes were applied, the record shows which holders worked at the same time.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::{Client, Outcome, kv::put, recipes::mutex::Ownership};
use testbed::Fault;

use crate::support::{node_links::NodeLinks, wait::until};

pub type SharedRecord = Arc<Mutex<ExclusionRecord>>;

#[derive(Default)]
pub struct ExclusionRecord {
    /// Start and end of each period in which a node worked.
    work_periods: Vec<(Instant, Instant)>,
    /// Numbers of the nodes that work now.
    working_nodes: Vec<usize>,
    /// Number of locks that were lost, or could not be acquired.
    pub losses: usize,
    /// Revision and fencing token of each applied write.
    pub writes: Vec<(i64, i64)>,
    /// Number of writes with an unknown outcome.
    unknown_writes: usize,
}

impl ExclusionRecord {
    /// Returns the number of the node that works now.
    pub fn working_node(&self) -> Option<usize> {
        self.working_nodes.last().copied()
    }

    /// Fails if two nodes worked at the same time, a node wrote with an old fencing token, or an increment was lost.
    pub fn check(&mut self, counter: usize) {
        println!(
            "{} work periods, {} losses, {} writes, {} unknown, counter {counter}",
            self.work_periods.len(),
            self.losses,
            self.writes.len(),
            self.unknown_writes,
        );
        self.work_periods.sort();
        for pair in self.work_periods.windows(2) {
            let overlap = pair[0].1.saturating_duration_since(pair[1].0);
            assert!(
                overlap.is_zero(),
                "two nodes worked at the same time for {overlap:?}"
            );
        }
        self.writes.sort_unstable();
        let in_order = self.writes.is_sorted_by_key(|write| write.1);
        assert!(in_order, "a holder wrote after the next holder");
        let (least, most) = (self.writes.len(), self.writes.len() + self.unknown_writes);
        assert!(
            (least..=most).contains(&counter),
            "the counter is {counter}, expected {least}..={most}"
        );
    }
}

/// Records one period of work, which ends when this value is dropped.
pub struct WorkPeriod {
    node: usize,
    start: Instant,
    record: SharedRecord,
}

impl WorkPeriod {
    pub fn start(node: usize, record: &SharedRecord) -> Self {
        record.lock().unwrap().working_nodes.push(node);
        Self {
            node,
            start: Instant::now(),
            record: record.clone(),
        }
    }
}

impl Drop for WorkPeriod {
    fn drop(&mut self) {
        let period = (self.start, Instant::now());
        let mut record = self.record.lock().unwrap();
        record.work_periods.push(period);
        record.working_nodes.retain(|node| *node != self.node);
    }
}

/// Cuts off only the working node, until another node works.
pub async fn cut_off_working_node(record: &SharedRecord, links: &[NodeLinks]) {
    until("a node works", || {
        record.lock().unwrap().working_node().is_some()
    })
    .await;
    let cut_off = record.lock().unwrap().working_node().unwrap();
    links[cut_off].set(Fault::Freeze);
    until("another node works", || {
        let working = record.lock().unwrap().working_node();
        working.is_some_and(|node| node != cut_off)
    })
    .await;
    links[cut_off].set(Fault::None);
}

/// Records a write with an unknown outcome, including a write that was cancelled in flight.
struct WriteInFlight {
    outcome_unknown: bool,
    record: SharedRecord,
}

impl Drop for WriteInFlight {
    fn drop(&mut self) {
        self.record.lock().unwrap().unknown_writes += usize::from(self.outcome_unknown);
    }
}

pub async fn read_counter(etcd: &Client) -> actix_etcd::Result<usize> {
    let found = etcd.get("counter").await?;
    let value = found.first().map(|kv| kv.value.clone());
    Ok(value.map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap()))
}

/// Increments the counter by a read and a write, which loses increments if two nodes do so at the same time.
///
/// Returns whether the holder may go on. It may not after a write with an unknown outcome, which would undo the next
/// increment if it were applied later. Once the holder has released its key, etcd no longer applies that write.
pub async fn increment_counter(etcd: &Client, held: &Ownership, record: &SharedRecord) -> bool {
    // Only the loss of the lock ends the work, not an outage.
    let before = loop {
        match read_counter(etcd).await {
            Ok(before) => break before,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let write = put("counter", (before + 1).to_string());
    let mut in_flight = WriteInFlight {
        outcome_unknown: true,
        record: record.clone(),
    };
    match held.txn().then([write]).await {
        Ok(response) => {
            in_flight.outcome_unknown = false;
            if response.succeeded {
                let write = (response.header.revision, held.token());
                record.lock().unwrap().writes.push(write);
            }
            response.succeeded
        }
        Err(error) => {
            in_flight.outcome_unknown = error.outcome() == Outcome::Unknown;
            false
        }
    }
}
