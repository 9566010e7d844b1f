//! The cluster to which a client belongs.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    EndpointId,
    cluster_choice::{ClusterAdmission, ClusterChoice, Voter},
    token::TokenCell,
};
use crate::error::{Error, ErrorKind, Outcome};

/// Longest time until an undecided connection is evaluated again.
const REEVALUATE_AFTER: Duration = Duration::from_secs(1);

/// The client's cluster. Shared by all connections of a client.
///
/// Callers compare every response with the id, without a lock. Connections take part in the choice; see
/// [`ClusterChoice`].
pub(crate) struct ClusterId {
    /// Zero while no cluster is chosen.
    id: AtomicU64,
    choice: Mutex<ClusterChoice>,
    /// Changes after every report, so that undecided connections are evaluated again.
    reports: watch::Sender<()>,
    token: Arc<TokenCell>,
}

impl ClusterId {
    /// Creates the id of a client that has not connected. `token` is retired when the client follows a change.
    pub(crate) fn new(follow_change: bool, token: Arc<TokenCell>) -> Self {
        Self {
            id: AtomicU64::new(0),
            choice: Mutex::new(ClusterChoice::new(follow_change)),
            reports: watch::Sender::new(()),
            token,
        }
    }

    /// Returns the id, or zero while no cluster is chosen.
    pub(crate) fn get(&self) -> u64 {
        self.id.load(Ordering::Acquire)
    }

    /// Returns whether responses with this cluster id are accepted. Zero, which stands for a missing id, is always
    /// accepted. If no connection has shown an id, the first response chooses the cluster.
    pub(crate) fn accepts(&self, cluster: u64) -> bool {
        if cluster == 0 || self.get() == cluster {
            return true;
        }
        if self.get() != 0 {
            return false;
        }
        let mut choice = self.choice();
        choice.choose_first(cluster);
        self.publish(&choice);
        choice.chosen() == Some(cluster)
    }

    /// Replaces the endpoints that take part in the choice.
    pub(crate) fn set_voters(&self, voters: Vec<Voter>) {
        self.choice().set_voters(voters);
        self.reports.send_replace(());
    }

    /// Returns whether the endpoint comes from a member list.
    pub(super) fn is_advertised(&self, id: EndpointId) -> bool {
        self.choice().is_advertised(id)
    }

    /// Reports that an endpoint could not be reached.
    pub(super) fn endpoint_failed(&self, id: EndpointId) {
        self.choice().failed(id, Instant::now());
        self.reports.send_replace(());
    }

    /// Waits until it is decided whether a new connection may be used. `cluster` is the id that its member reported, or
    /// zero. Fails if the member does not belong to the client's cluster.
    pub(super) async fn admit(
        self: &Arc<Self>,
        id: EndpointId,
        endpoint: &str,
        cluster: u64,
    ) -> Result<ClusterMembership, Error> {
        let mut reports = self.reports.subscribe();
        loop {
            let (admission, before) = {
                let mut choice = self.choice();
                let before = choice.chosen();
                let admission = choice.admission(id, cluster, Instant::now());
                if before.is_some() && choice.chosen() != before {
                    // Before the new id is visible: no request to the new cluster may carry the old token.
                    self.token.retire_after_cluster_change();
                }
                self.publish(&choice);
                (admission, before)
            };
            self.log_change(before);
            match admission {
                ClusterAdmission::Admitted { epoch } => {
                    self.reports.send_replace(());
                    let cluster = self.clone();
                    return Ok(ClusterMembership { cluster, epoch });
                }
                ClusterAdmission::Undecided { until } => {
                    let until = until.min(Instant::now() + REEVALUATE_AFTER);
                    tokio::select! {
                        // Never fails: this object holds the sender.
                        _ = reports.changed() => {}
                        () = sleep_until(until) => {}
                    }
                }
                ClusterAdmission::Foreign { chosen, new } => {
                    self.reports.send_replace(());
                    if new {
                        tracing::warn!(
                            endpoint,
                            cluster = format_args!("{cluster:x}"),
                            client_cluster = format_args!("{chosen:x}"),
                            "endpoint refused: its member belongs to another cluster"
                        );
                    }
                    return Err(foreign_cluster_error(chosen, cluster));
                }
                ClusterAdmission::Unidentified => {
                    self.reports.send_replace(());
                    return Err(unidentified_error());
                }
                ClusterAdmission::Tie(reports) => {
                    self.reports.send_replace(());
                    return Err(tie_error(&reports));
                }
            }
        }
    }

    /// Returns the error that explains why no cluster is chosen, if the endpoints report different ones.
    pub(crate) fn tie(&self) -> Option<Error> {
        self.choice().tie().map(tie_error)
    }

    /// Waits until the endpoints report different clusters without a majority.
    pub(crate) async fn tied(&self) -> Error {
        let mut reports = self.reports.subscribe();
        loop {
            if let Some(error) = self.tie() {
                return error;
            }
            // Never fails: this object holds the sender.
            let _ = reports.changed().await;
        }
    }

    fn choice(&self) -> MutexGuard<'_, ClusterChoice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, choice: &ClusterChoice) {
        let id = choice.chosen().unwrap_or_default();
        self.id.store(id, Ordering::Release);
    }

    fn log_change(&self, before: Option<u64>) {
        let after = self.get();
        if let Some(before) = before.filter(|before| *before != after) {
            tracing::warn!(
                before = format_args!("{before:x}"),
                after = format_args!("{after:x}"),
                "followed another cluster: no member of the previous one responds"
            );
        }
    }
}

/// Counts an open connection to a member of the client's cluster until it is dropped.
pub(super) struct ClusterMembership {
    cluster: Arc<ClusterId>,
    epoch: u64,
}

impl Drop for ClusterMembership {
    fn drop(&mut self) {
        self.cluster.choice().closed(self.epoch, Instant::now());
        self.cluster.reports.send_replace(());
    }
}

/// Returns the error for a member of a cluster that the client does not belong to.
pub(crate) fn foreign_cluster_error(known: u64, cluster: u64) -> Error {
    Error::new(
        ErrorKind::ClusterChanged,
        Outcome::NotSent,
        format!(
            "the member belongs to cluster {cluster:x}, but this client belongs to cluster {known:x}; \
             create a new client if the change is intended"
        ),
    )
}

fn unidentified_error() -> Error {
    Error::new(
        ErrorKind::ClusterChanged,
        Outcome::NotSent,
        "the address comes from the member list, but its member reports no cluster id",
    )
}

fn tie_error(reports: &[(Arc<str>, u64)]) -> Error {
    let reports: Vec<String> = reports
        .iter()
        .map(|(endpoint, id)| format!("{endpoint}: {id:x}"))
        .collect();
    let reason = format!(
        "no cluster is reported by most of the endpoints ({})",
        reports.join("; ")
    );
    Error::new(ErrorKind::MixedClusters, Outcome::NotSent, reason)
}
