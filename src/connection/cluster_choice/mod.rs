//! Decides to which cluster a client belongs, and when it may follow its endpoints to another one. Pure: time is an
//! argument.
//!
//! At first the endpoints vote: each reports the cluster id of its member. A cluster is chosen as soon as most of the
//! endpoints have reported it. If some endpoints are silent, those that have reported within [`VOTING_TIME`] decide. A
//! tie chooses no cluster. Later, only members of the chosen cluster are admitted.
//!
//! A client that follows changes votes again after its last connection to the chosen cluster has closed: at once if
//! every endpoint reports another cluster, otherwise after [`ABSENCE`]. A single report of the chosen cluster ends the
//! vote in its favor. So the client never uses two clusters at a time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::EndpointId;

/// Time after the first report for which a vote waits for silent endpoints.
pub(super) const VOTING_TIME: Duration = Duration::from_millis(300);
/// Time without a connection to the chosen cluster after which another cluster may be followed, although an endpoint
/// may still lead to the chosen one.
pub(super) const ABSENCE: Duration = Duration::from_secs(1);

/// An endpoint that takes part in the choice.
#[derive(Debug, Clone)]
pub(crate) struct Voter {
    pub(crate) id: EndpointId,
    /// The endpoint in its normalized form.
    pub(crate) name: Arc<str>,
    /// Whether the endpoint comes from a member list. Its connections must report a cluster id.
    pub(crate) advertised: bool,
}

/// What a new connection reported about its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// The endpoint could not be reached at this time.
    Failed(Instant),
    /// The member responded without a cluster id.
    Unidentified,
    Cluster(u64),
}

#[derive(Debug)]
struct EndpointReport {
    voter: Voter,
    /// Report in the current vote.
    report: Option<Report>,
    /// Foreign cluster that the endpoint reported last.
    foreign: Option<u64>,
}

/// Decision about a new connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClusterAdmission {
    /// The connection may be used. It belongs to this epoch; see [`ClusterChoice::closed`].
    Admitted { epoch: u64 },
    /// Not decided. Evaluate again at this time, or after another report.
    Undecided { until: Instant },
    /// The member belongs to another cluster than the client.
    Foreign {
        chosen: u64,
        /// Whether the endpoint reports this foreign cluster for the first time.
        new: bool,
    },
    /// The member reported no cluster id, although its endpoint comes from a member list.
    Unidentified,
    /// The endpoints report different clusters, none of them the majority: each endpoint with its cluster id.
    Tie(Vec<(Arc<str>, u64)>),
}

/// Result of a vote.
enum Vote {
    Open { until: Instant },
    NoReports,
    Won(u64),
    Tied(Vec<(Arc<str>, u64)>),
}

/// The client's cluster, and the vote about it.
#[derive(Debug)]
pub(super) struct ClusterChoice {
    follow_change: bool,
    endpoints: BTreeMap<EndpointId, EndpointReport>,
    chosen: Option<u64>,
    /// Number of the choice. Connections of earlier epochs do not count.
    epoch: u64,
    /// Number of open connections of this epoch.
    open: usize,
    /// Time at which the vote ends without the silent endpoints; `None` before the first report.
    vote_end: Option<Instant>,
    /// Reports of the last tie; `None` once it is resolved.
    tie: Option<Vec<(Arc<str>, u64)>>,
}

impl ClusterChoice {
    pub(super) fn new(follow_change: bool) -> Self {
        Self {
            follow_change,
            endpoints: BTreeMap::new(),
            chosen: None,
            epoch: 0,
            open: 0,
            vote_end: None,
            tie: None,
        }
    }

    pub(super) fn chosen(&self) -> Option<u64> {
        self.chosen
    }

    /// Returns the reports of a tie that is not resolved.
    pub(super) fn tie(&self) -> Option<&[(Arc<str>, u64)]> {
        self.tie.as_deref()
    }

    /// Replaces the endpoints. Reports of endpoints that stay are kept.
    pub(super) fn set_voters(&mut self, voters: Vec<Voter>) {
        let mut previous = std::mem::take(&mut self.endpoints);
        self.endpoints = voters
            .into_iter()
            .map(|voter| {
                let known = previous.remove(&voter.id);
                let (report, foreign) =
                    known.map_or((None, None), |known| (known.report, known.foreign));
                let entry = EndpointReport {
                    voter: voter.clone(),
                    report,
                    foreign,
                };
                (voter.id, entry)
            })
            .collect();
        self.tie = None;
    }

    /// Returns whether the endpoint comes from a member list.
    pub(super) fn is_advertised(&self, id: EndpointId) -> bool {
        let endpoint = self.endpoints.get(&id);
        endpoint.is_some_and(|endpoint| endpoint.voter.advertised)
    }

    /// Records that the endpoint could not be reached.
    pub(super) fn failed(&mut self, id: EndpointId, now: Instant) {
        self.record(id, Report::Failed(now), now);
    }

    /// Decides about a new connection of this endpoint. `cluster` is the id that its member reported, or zero if it
    /// reported none.
    pub(super) fn admission(
        &mut self,
        id: EndpointId,
        cluster: u64,
        now: Instant,
    ) -> ClusterAdmission {
        let unidentified = cluster == 0;
        let report = if unidentified {
            Report::Unidentified
        } else {
            Report::Cluster(cluster)
        };
        self.record(id, report, now);
        if unidentified && self.is_advertised(id) {
            return ClusterAdmission::Unidentified;
        }
        if let Some(chosen) = self.chosen {
            if unidentified || cluster == chosen {
                return self.admit(id);
            }
            if !self.is_voting() {
                return self.refuse(id, chosen, cluster);
            }
        }
        match self.vote(now) {
            Vote::Open { until } => ClusterAdmission::Undecided { until },
            Vote::NoReports => match self.chosen {
                None => self.admit(id),
                Some(chosen) => self.refuse(id, chosen, cluster),
            },
            Vote::Tied(reports) => {
                self.tie = Some(reports.clone());
                ClusterAdmission::Tie(reports)
            }
            Vote::Won(winner) => {
                self.choose(winner, now);
                if unidentified || cluster == winner {
                    self.admit(id)
                } else {
                    self.refuse(id, winner, cluster)
                }
            }
        }
    }

    /// Chooses a cluster without a vote, unless one is chosen. For an id that a response contained, although no new
    /// connection reported one.
    pub(super) fn choose_first(&mut self, cluster: u64) {
        self.chosen.get_or_insert(cluster);
    }

    /// Records that an admitted connection closed.
    pub(super) fn closed(&mut self, epoch: u64, now: Instant) {
        if epoch != self.epoch {
            return;
        }
        self.open = self.open.saturating_sub(1);
        if self.is_voting() && self.chosen.is_some() {
            self.start_vote(now + ABSENCE);
        }
    }

    fn is_voting(&self) -> bool {
        self.chosen.is_none() || (self.follow_change && self.open == 0)
    }

    fn record(&mut self, id: EndpointId, report: Report, now: Instant) {
        if !self.is_voting() {
            return;
        }
        let is_cluster = |report| matches!(report, Report::Cluster(_));
        let responded = self
            .endpoints
            .values()
            .any(|endpoint| endpoint.report.is_some_and(is_cluster));
        let reports_cluster = is_cluster(report);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.report = Some(report);
            // Failures before the first response do not shorten the vote.
            let first_response = reports_cluster && !responded && self.chosen.is_none();
            if first_response || self.vote_end.is_none() {
                self.vote_end = Some(now + VOTING_TIME);
            }
        }
    }

    fn vote(&self, now: Instant) -> Vote {
        let until = self.vote_end.unwrap_or(now);
        let mut reports = Vec::with_capacity(self.endpoints.len());
        let mut all_reported = true;
        for endpoint in self.endpoints.values() {
            match endpoint.report {
                Some(Report::Cluster(id)) => reports.push((endpoint.voter.name.clone(), id)),
                // An endpoint that fails may still lead to the chosen cluster.
                Some(Report::Failed(_) | Report::Unidentified) if self.chosen.is_some() => {
                    all_reported = false;
                }
                // The member may have started since then.
                Some(Report::Failed(at)) if at + VOTING_TIME <= now => all_reported = false,
                Some(Report::Failed(_) | Report::Unidentified) => {}
                None => all_reported = false,
            }
        }
        if self.chosen.is_none()
            && let Some(winner) = majority(&reports, self.endpoints.len())
        {
            return Vote::Won(winner);
        }
        if !all_reported && now < until {
            return Vote::Open { until };
        }
        if reports.is_empty() {
            return Vote::NoReports;
        }
        match majority(&reports, reports.len()) {
            Some(winner) => Vote::Won(winner),
            None => Vote::Tied(reports),
        }
    }

    fn choose(&mut self, winner: u64, now: Instant) {
        self.chosen = Some(winner);
        self.epoch += 1;
        self.open = 0;
        self.tie = None;
        self.start_vote(now + ABSENCE);
    }

    fn start_vote(&mut self, end: Instant) {
        self.vote_end = Some(end);
        for endpoint in self.endpoints.values_mut() {
            endpoint.report = None;
        }
    }

    fn admit(&mut self, id: EndpointId) -> ClusterAdmission {
        self.open += 1;
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.foreign = None;
        }
        ClusterAdmission::Admitted { epoch: self.epoch }
    }

    fn refuse(&mut self, id: EndpointId, chosen: u64, cluster: u64) -> ClusterAdmission {
        let endpoint = self.endpoints.get_mut(&id);
        let known = endpoint.and_then(|endpoint| endpoint.foreign.replace(cluster));
        ClusterAdmission::Foreign {
            chosen,
            new: known != Some(cluster),
        }
    }
}

/// Returns the cluster that more than half of `voters` reported.
fn majority(reports: &[(Arc<str>, u64)], voters: usize) -> Option<u64> {
    let count = |id: u64| reports.iter().filter(|(_, other)| *other == id).count();
    let winner = reports.iter().find(|(_, id)| count(*id) * 2 > voters);
    winner.map(|(_, id)| *id)
}

#[cfg(test)]
mod tests;
