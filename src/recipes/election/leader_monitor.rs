//! Whether this candidate leads, and whether it is healthy enough to lead.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{Ownership, OwnershipLost};
use crate::{recipes::lock_queue::remove, retry::availability::RETRY_DELAY};

/// Shortest interval of health checks.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// The leadership that a candidate has now, if any. Shared by an election and its clones.
#[derive(Clone, Default)]
pub(super) struct LeaderStatus(Arc<Mutex<Option<Ownership>>>);

impl LeaderStatus {
    pub(super) fn is_leader(&self) -> bool {
        self.lock().as_ref().is_some_and(Ownership::is_certain)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ownership>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, ownership: Ownership) {
        *self.lock() = Some(ownership);
    }

    /// Ends this leadership, unless another one has followed.
    fn clear(&self, ownership: &Ownership) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|held| held.is_same(ownership)) {
            *current = None;
        }
    }
}

/// A check of the application's health, called at intervals.
#[derive(Clone)]
pub(in crate::recipes) struct HealthCheck {
    interval: Duration,
    check: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl HealthCheck {
    pub(in crate::recipes) fn new(
        interval: Duration,
        check: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            interval: interval.max(MIN_INTERVAL),
            check: Arc::new(check),
        }
    }

    /// Calls the check. A check that panics counts as not healthy.
    pub(in crate::recipes) fn is_healthy(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.check)())).unwrap_or(false)
    }

    /// Waits until the check returns `true`.
    pub(in crate::recipes) async fn healthy(&self) {
        while !self.is_healthy() {
            tokio::time::sleep(self.interval).await;
        }
    }

    /// Waits until the check returns `false`.
    pub(in crate::recipes) async fn unhealthy(&self) {
        while self.is_healthy() {
            tokio::time::sleep(self.interval).await;
        }
    }
}

impl fmt::Debug for HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthCheck")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// Watches the key of a leadership and the health of its candidate, on the client's thread, until it is dropped.
pub(super) struct LeaderMonitor {
    status: LeaderStatus,
    ownership: Ownership,
    /// Dropped to end the task.
    _end: oneshot::Sender<()>,
}

impl LeaderMonitor {
    pub(super) fn start(
        ownership: &Ownership,
        status: LeaderStatus,
        health: Option<HealthCheck>,
    ) -> Self {
        let (end, ended) = oneshot::channel();
        status.set(ownership.clone());
        let monitored = ownership.for_background();
        monitored.client().clone().run(move || {
            actix_rt::spawn(monitor(monitored, health, ended));
        });
        Self {
            status,
            ownership: ownership.clone(),
            _end: end,
        }
    }
}

impl Drop for LeaderMonitor {
    fn drop(&mut self) {
        self.status.clear(&self.ownership);
    }
}

async fn monitor(
    ownership: Ownership,
    health: Option<HealthCheck>,
    mut ended: oneshot::Receiver<()>,
) {
    let unhealthy = async {
        match &health {
            Some(health) => health.unhealthy().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = &mut ended => return,
        _ = ownership.session_lease.ended() => return,
        _ = ownership.key_taken() => return,
        () = unhealthy => {}
    }
    tracing::warn!(key = ?ownership.key(), "leadership given up, candidate is not healthy");
    let remaining = ownership.remaining();
    ownership.early_end.set(OwnershipLost::Unhealthy);
    // The leader has as much time to stop as it would have after the last renewal of its lease. Usually it drops the
    // leadership sooner.
    tokio::select! {
        _ = &mut ended => return,
        () = tokio::time::sleep(remaining) => {}
    }
    tokio::select! {
        _ = ended => {}
        _ = ownership.session_lease.ended() => {}
        () = remove_key(&ownership) => {}
    }
}

async fn remove_key(ownership: &Ownership) {
    while remove(ownership).await.is_err() {
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
