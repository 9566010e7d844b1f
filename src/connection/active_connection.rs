//! The connection in use, with the state that only its actor needs.

use std::{future::Future, net::SocketAddr, sync::Arc};

use actix::SpawnHandle;
use tokio::time::Instant;

use super::{
    Connection, Verdict,
    cluster_id::ClusterMembership,
    driver_task::DriverTask,
    member_health::{ProgressTracker, STALLED_AFTER},
    probe_schedule::ProbeSchedule,
};
use crate::runtime::abort_on_drop::AbortOnDrop;

/// The connection in use.
pub(super) struct ActiveConnection {
    pub(super) connection: Arc<Connection>,
    /// The address that was dialled; `None` for a Unix socket.
    pub(super) address: Option<SocketAddr>,
    pub(super) driver: DriverTask,
    pub(super) progress: ProgressTracker,
    /// Last report of the member's health service; `true` without one.
    pub(super) serving: bool,
    pub(super) probe: ProbeState,
    pub(super) schedule: ProbeSchedule,
    /// Timer of the next probe.
    pub(super) next_probe: Option<SpawnHandle>,
    /// Time at which a `Suspect` message was last reported to the owner.
    pub(super) suspicion_reported_at: Option<Instant>,
    /// Time since which there has always been a slow call.
    pub(super) suspected_since: Option<Instant>,
    pub(super) _health_service: AbortOnDrop,
    pub(super) _membership: ClusterMembership,
}

impl ActiveConnection {
    pub(super) fn generation(&self) -> u64 {
        self.connection.generation
    }

    /// Returns the start of an outage that begins now with this verdict.
    pub(super) fn outage(&self, verdict: Verdict) -> Outage {
        Outage {
            since: Instant::now(),
            was_behind: verdict == Verdict::Unresponsive || self.progress.is_catching_up(),
        }
    }

    pub(super) fn member(&self) -> Option<u64> {
        let status = self.connection.health().status;
        status.map(|status| status.member)
    }

    /// Returns whether the response to a probe is late and the member has sent nothing for longer than its round trips
    /// explain. A probe that waits for a free stream proves nothing.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let silence = self.connection.timing.unresponsive_after();
        let last_received = self.connection.channel.wire_log().last_received();
        self.probe == ProbeState::Late && last_received + silence <= now
    }

    pub(super) fn set_verdict(&self, verdict: Verdict) {
        let health = self.connection.health().updated(verdict, None);
        self.connection.health.send_replace(health);
    }

    /// Lets the requests in flight finish. The returned future resolves when the connection is closed.
    pub(super) fn close_gracefully(self) -> impl Future<Output = ()> + 'static {
        // Long-lived streams do not finish by themselves: they stop when the verdict is `Closed`.
        self.set_verdict(Verdict::Closed);
        let Self {
            connection, driver, ..
        } = self;
        drop(connection);
        driver.finish()
    }
}

/// The probe of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeState {
    Idle,
    /// Started. It may wait for a free stream.
    InFlight,
    /// Sent, and the response is late.
    Late,
}

/// The time since the last connection ended without a command to close it.
pub(super) struct Outage {
    since: Instant,
    /// Whether the member did not respond, or had not caught up after an earlier outage.
    was_behind: bool,
}

impl Outage {
    /// Returns whether the member may have missed commits.
    pub(super) fn may_have_missed_commits(&self, now: Instant) -> bool {
        self.was_behind || self.since + STALLED_AFTER <= now
    }
}
