//! Compares everything that the load recorded with the history of the cluster.

use std::collections::HashMap;

use actix_etcd::Outcome;
use testbed::Cluster;

use crate::load::{PUT_PREFIX, Records, WATCHED_PREFIX};

/// Violations of the guarantees; all must be zero.
#[derive(Debug)]
pub struct Outcomes {
    pub puts: usize,
    /// Number of keys written more than once; each key belongs to one call.
    pub written_twice: usize,
    /// Number of writes in the history whose calls reported that they were not applied.
    pub applied_despite_error: usize,
    /// Number of acknowledged writes that are not in the history.
    pub missing: usize,
    pub events: usize,
    /// Number of revisions that the watch did not deliver although it delivered later ones.
    pub missed_revisions: usize,
    /// Number of revisions that the watch delivered twice or out of order.
    pub repeated_revisions: usize,
}

impl Outcomes {
    pub async fn new(records: &Records, cluster: &Cluster) -> Self {
        let mut applied: HashMap<String, usize> = HashMap::new();
        for change in cluster.history(PUT_PREFIX).await {
            let key = String::from_utf8_lossy(&change.key).into_owned();
            *applied.entry(key).or_default() += 1;
        }
        let is_applied = |key: &str| applied.contains_key(key);
        let applied_despite_error = records.puts.iter().filter(|call| {
            let failure = call.failure.as_ref();
            let excluded = failure.is_some_and(|(_, outcome)| *outcome != Outcome::Unknown);
            excluded && is_applied(&call.key)
        });
        let lost = records
            .puts
            .iter()
            .filter(|call| call.failure.is_none() && !is_applied(&call.key));
        let delivered: Vec<i64> = records
            .events
            .iter()
            .map(|(_, revision)| *revision)
            .collect();
        let newest = delivered.iter().copied().max().unwrap_or(0);
        let history = cluster.history(WATCHED_PREFIX).await;
        let expected = history
            .iter()
            .map(|change| change.revision)
            .filter(|revision| (records.watched_from..=newest).contains(revision));
        let in_order = |pair: &&[i64]| pair[0] < pair[1];
        let repeated = delivered.windows(2).filter(|pair| !in_order(pair)).count();
        Self {
            puts: records.puts.len(),
            written_twice: applied.values().filter(|times| **times > 1).count(),
            applied_despite_error: applied_despite_error.count(),
            missing: lost.count(),
            events: delivered.len(),
            missed_revisions: (expected.count() + repeated).saturating_sub(delivered.len()),
            repeated_revisions: repeated,
        }
    }

    pub fn are_correct(&self) -> bool {
        let violations = [
            self.written_twice,
            self.applied_despite_error,
            self.missing,
            self.missed_revisions,
            self.repeated_revisions,
        ];
        violations == [0; 5]
    }
}
