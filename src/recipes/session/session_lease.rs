//! The status of a session's lease, for its locks and elections.
//!
//! The session actor writes the status into a [`LeaseStatusCell`]. A lock holds a [`SessionLease`], which refers to one
//! lease by its id: when a session heals, locks of the previous lease are lost.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;

use super::{FollowLateKey, LocalMutex, SessionState};
use crate::{lease::LeaseLost, recipes::ownership_lost::OwnershipLost};

/// Time before its deadline at which a lease no longer counts as held: more than the owner needs to detect the loss. A
/// lease that is renewed on time never gets this close to its deadline.
const LOSS_MARGIN: Duration = Duration::from_millis(200);

/// Longest sleep before the remaining time is read again. Timers stop while the machine is suspended, and the remaining
/// time does not.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Reason for the owner of a lock when the client begins to shut down. The lease lives until the owner has stopped.
const CLIENT_STOPS: OwnershipLost = OwnershipLost::Session(LeaseLost::Shutdown);

/// The current lease of a session and its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SessionLeaseStatus {
    lease: i64,
    condition: LeaseCondition,
    /// Why the previous lease was lost.
    previous_loss: Option<LeaseLost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseCondition {
    Certain,
    AtRisk,
    Lost(LeaseLost),
    /// The session was closed. Final.
    Closed,
}

impl SessionLeaseStatus {
    /// Returns why the lease has ended, or `None` while it has not.
    fn end_of(&self, lease: i64) -> Option<OwnershipLost> {
        if self.lease != lease {
            return Some(OwnershipLost::Session(
                self.previous_loss.unwrap_or(LeaseLost::Expired),
            ));
        }
        match self.condition {
            LeaseCondition::Certain | LeaseCondition::AtRisk => None,
            LeaseCondition::Lost(reason) => Some(OwnershipLost::Session(reason)),
            LeaseCondition::Closed => Some(OwnershipLost::Closed),
        }
    }

    /// Returns why the lease has ended or is at risk, or `None` while it is certain.
    fn end_or_risk_of(&self, lease: i64) -> Option<OwnershipLost> {
        let at_risk = self.condition == LeaseCondition::AtRisk;
        self.end_of(lease)
            .or(at_risk.then_some(OwnershipLost::AtRisk))
    }

    /// Returns `Ok` if the lease is certain, an error if it has ended, and `None` if neither is known yet. Checks the
    /// remaining time as well, because the report of a missed deadline can be late.
    fn certainty_of(&self, lease: i64, remaining: Duration) -> Option<Result<(), OwnershipLost>> {
        match self.end_or_risk_of(lease) {
            None => (remaining > LOSS_MARGIN).then_some(Ok(())),
            Some(OwnershipLost::AtRisk) => None,
            Some(loss) => Some(Err(loss)),
        }
    }
}

/// Publishes the [`SessionLeaseStatus`] of a session.
pub(super) struct LeaseStatusCell(watch::Sender<SessionLeaseStatus>);

impl LeaseStatusCell {
    pub(super) fn new(lease: i64) -> Self {
        Self(watch::Sender::new(SessionLeaseStatus {
            lease,
            condition: LeaseCondition::Certain,
            previous_loss: None,
        }))
    }

    pub(super) fn replace_lease(&self, lease: i64) {
        self.modify(|status| {
            if let LeaseCondition::Lost(reason) = status.condition {
                status.previous_loss = Some(reason);
            }
            status.lease = lease;
            status.condition = LeaseCondition::Certain;
        });
    }

    pub(super) fn set_certain(&self) {
        self.modify(|status| status.condition = LeaseCondition::Certain);
    }

    pub(super) fn set_at_risk(&self) {
        self.modify(|status| status.condition = LeaseCondition::AtRisk);
    }

    /// Marks the lease as lost. The first reason is kept.
    pub(super) fn set_lost(&self, reason: LeaseLost) {
        self.modify(|status| {
            if !matches!(status.condition, LeaseCondition::Lost(_)) {
                status.condition = LeaseCondition::Lost(reason);
            }
        });
    }

    /// Marks the session as closed. The reason of an earlier loss is kept.
    pub(super) fn close(&self) {
        self.modify(|status| {
            if !matches!(status.condition, LeaseCondition::Lost(_)) {
                status.condition = LeaseCondition::Closed;
            }
        });
    }

    /// Wakes all tasks that wait for a change, because the session has ended.
    pub(super) fn notify(&self) {
        self.0.send_modify(|_| {});
    }

    fn modify(&self, modify: impl FnOnce(&mut SessionLeaseStatus)) {
        self.0.send_if_modified(|status| {
            let before = *status;
            if before.condition != LeaseCondition::Closed {
                modify(status);
            }
            *status != before
        });
    }
}

/// One lease of a session.
#[derive(Clone)]
pub(in crate::recipes) struct SessionLease {
    session: Arc<SessionState>,
    lease: i64,
}

impl SessionLease {
    /// Returns the current lease of the session, or why it cannot be used: it has ended, or the client shuts down.
    pub(in crate::recipes) fn current(session: &Arc<SessionState>) -> Result<Self, OwnershipLost> {
        if session.client_stops.is_set() {
            return Err(CLIENT_STOPS);
        }
        let status = *session.lease_status.0.borrow();
        match status.end_of(status.lease) {
            Some(loss) => Err(loss),
            None => Ok(Self {
                session: session.clone(),
                lease: status.lease,
            }),
        }
    }

    /// Returns the current lease of a session that heals. Waits while it heals, and fails when the session has ended.
    pub(in crate::recipes) async fn healed(
        session: &Arc<SessionState>,
    ) -> Result<Self, OwnershipLost> {
        let mut status = session.lease_status.0.subscribe();
        loop {
            status.mark_unchanged();
            match Self::current(session) {
                Err(OwnershipLost::Session(_))
                    if !session.has_ended() && !session.client_stops.is_set() => {}
                result => return result,
            }
            tokio::select! {
                // Never fails: `session` owns the sender.
                _ = status.changed() => {}
                () = session.client_stops.wait() => {}
            }
        }
    }

    pub(in crate::recipes) fn id(&self) -> i64 {
        self.lease
    }

    /// Returns how long the server is certain to have the lease.
    pub(in crate::recipes) fn remaining(&self) -> Duration {
        self.session.remaining(Some(self.lease))
    }

    /// Waits until the lease has ended.
    pub(in crate::recipes) async fn ended(&self) -> OwnershipLost {
        self.wait_for(|status| status.end_of(self.lease)).await
    }

    /// Waits until the lease has ended or the client shuts down: then no lock is requested any more.
    pub(in crate::recipes) async fn ended_or_client_stops(&self) -> OwnershipLost {
        tokio::select! {
            biased;
            loss = self.ended() => loss,
            () = self.session.client_stops.wait() => CLIENT_STOPS,
        }
    }

    /// Returns why the lease has ended or is not certain, or whether the client shuts down. `None` while the lease is
    /// certain. Reads the clock.
    pub(in crate::recipes) fn loss_now(&self) -> Option<OwnershipLost> {
        // Read before the status: a session that ends sets the status before it gives up the lease.
        let expires = self.remaining() <= LOSS_MARGIN;
        let client_stops = self.session.client_stops.is_set();
        let status = *self.session.lease_status.0.borrow();
        status
            .end_or_risk_of(self.lease)
            .or(client_stops.then_some(CLIENT_STOPS))
            .or(expires.then_some(OwnershipLost::AtRisk))
    }

    /// Waits until the lease has ended or is at risk, or the client shuts down. Resolves [`LOSS_MARGIN`] before the
    /// deadline, so that the owner stops before the server can give the lock to another session.
    ///
    /// Reads the clock on every poll: when a paused process continues, tasks may be polled before timers fire.
    pub(in crate::recipes) async fn ended_or_at_risk(&self) -> OwnershipLost {
        let mut loss = pin!(async {
            tokio::select! {
                loss = self.wait_for(|status| status.end_or_risk_of(self.lease)) => loss,
                () = self.session.client_stops.wait() => CLIENT_STOPS,
                () = self.nearly_expired() => OwnershipLost::AtRisk,
            }
        });
        poll_fn(|cx| match self.loss_now() {
            Some(loss) => Poll::Ready(loss),
            None => loss.as_mut().poll(cx),
        })
        .await
    }

    /// Adds a key that a request without a response may still bind to this lease. Returns how to follow it, or `None`
    /// if the lease has ended.
    pub(in crate::recipes) fn add_late_key(
        &self,
        key: &Bytes,
        local_mutex: &LocalMutex,
    ) -> Option<FollowLateKey> {
        let status = *self.session.lease_status.0.borrow();
        let ended = status.end_of(self.lease).is_some();
        (!ended).then(|| self.session.late_keys.add(self.lease, key, local_mutex))
    }

    async fn nearly_expired(&self) {
        loop {
            let spare = self.remaining().saturating_sub(LOSS_MARGIN);
            if spare.is_zero() {
                return;
            }
            tokio::time::sleep(spare.min(MAX_SLEEP)).await;
        }
    }

    /// Waits until the lease is certain. Fails when it has ended or the client shuts down.
    pub(in crate::recipes) async fn certain(&self) -> Result<(), OwnershipLost> {
        let certainty =
            |status: &SessionLeaseStatus| status.certainty_of(self.lease, self.remaining());
        loop {
            if self.session.client_stops.is_set() {
                return Err(CLIENT_STOPS);
            }
            // A renewal moves the deadline without a change of the status, so the remaining time is also polled.
            tokio::select! {
                biased;
                certain = self.wait_for(certainty) => return certain,
                () = tokio::time::sleep(LOSS_MARGIN / 10) => {}
            }
        }
    }

    async fn wait_for<T>(&self, condition: impl Fn(&SessionLeaseStatus) -> Option<T>) -> T {
        let mut status = self.session.lease_status.0.subscribe();
        loop {
            let now = *status.borrow_and_update();
            if let Some(result) = condition(&now) {
                return result;
            }
            // Never fails: `self` owns the session state, which owns the sender.
            if status.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(cell: &LeaseStatusCell) -> SessionLeaseStatus {
        *cell.0.borrow()
    }

    #[test]
    fn lease_at_risk_can_become_certain_again() {
        let cell = LeaseStatusCell::new(7);
        cell.set_at_risk();
        assert_eq!(status(&cell).end_or_risk_of(7), Some(OwnershipLost::AtRisk));
        assert_eq!(status(&cell).end_of(7), None);
        cell.set_certain();
        assert_eq!(status(&cell).end_or_risk_of(7), None);
    }

    #[test]
    fn lease_near_its_deadline_is_not_certain() {
        let cell = LeaseStatusCell::new(7);
        let certainty = |lease, remaining| status(&cell).certainty_of(lease, remaining);
        assert_eq!(certainty(7, 2 * LOSS_MARGIN), Some(Ok(())));
        // The deadline has passed, but the cell is not marked yet.
        assert_eq!(certainty(7, Duration::ZERO), None);
        assert_eq!(certainty(7, LOSS_MARGIN), None);
        cell.set_at_risk();
        assert_eq!(certainty(7, 2 * LOSS_MARGIN), None);
        cell.set_lost(LeaseLost::Expired);
        let lost = Err(OwnershipLost::Session(LeaseLost::Expired));
        assert_eq!(certainty(7, 2 * LOSS_MARGIN), Some(lost));
    }

    #[test]
    fn previous_lease_stays_lost_after_healing() {
        let cell = LeaseStatusCell::new(7);
        cell.set_lost(LeaseLost::Revoked);
        cell.replace_lease(8);
        assert_eq!(
            status(&cell).end_of(7),
            Some(OwnershipLost::Session(LeaseLost::Revoked))
        );
        assert_eq!(status(&cell).end_of(8), None);
    }

    #[test]
    fn closed_is_final_unless_lost_before() {
        let cell = LeaseStatusCell::new(7);
        cell.close();
        cell.set_certain();
        cell.replace_lease(8);
        assert_eq!(status(&cell).end_of(7), Some(OwnershipLost::Closed));
        let cell = LeaseStatusCell::new(7);
        cell.set_lost(LeaseLost::Expired);
        cell.close();
        assert_eq!(
            status(&cell).end_of(7),
            Some(OwnershipLost::Session(LeaseLost::Expired))
        );
    }
}
