//! Settings and state shared by all connections of a client.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::token::TokenCell;
use super::{
    ClusterId, EndpointId, Liveness, OpenConnections, OtherMembers, probe_budget::ProbeBudget,
};
use crate::transport::dial::DialOptions;

/// Settings and state shared by all connections of a client.
pub(crate) struct ConnectionContext {
    pub(crate) dial: DialOptions,
    pub(crate) token: Arc<TokenCell>,
    pub(crate) connections: OpenConnections,
    pub(crate) cluster: Arc<ClusterId>,
    /// The other members, with which a probed member is compared.
    pub(crate) members: Arc<dyn ClusterView>,
    /// Whether every member is probed regularly, so that the leader is always known.
    pub(crate) follow_leader: bool,
    pub(crate) liveness: Liveness,
    pub(crate) probes: SharedProbeBudget,
}

/// The budget for the probes of all members of a client.
pub(crate) struct SharedProbeBudget(Mutex<ProbeBudget>);

impl Default for SharedProbeBudget {
    fn default() -> Self {
        Self(Mutex::new(ProbeBudget::of_client()))
    }
}

impl SharedProbeBudget {
    pub(super) fn delay(&self, now: Instant) -> Duration {
        self.lock().delay(now)
    }

    pub(super) fn take(&self, now: Instant) {
        self.lock().take(now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ProbeBudget> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Read access to the members behind all connections of a client.
pub(crate) trait ClusterView: Send + Sync {
    /// Returns the last known status of every connected member except one.
    fn other_members(&self, except: EndpointId) -> OtherMembers;

    /// Returns whether any connected member except one has sent data after `since`.
    fn others_responded_since(&self, except: EndpointId, since: Instant) -> bool;
}
