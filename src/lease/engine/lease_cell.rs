//! State of one lease that its actor and its handle share across threads.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::clock::{now, to_monotonic};
use crate::{
    lease::{
        LeaseLost,
        events::{EventQueue, LeaseEvent, LeaseEvents},
    },
    runtime::holders::RevocableLease,
};

/// Deadline, subscribers and end of one lease.
pub(crate) struct LeaseCell {
    id: i64,
    /// Id of the cluster that granted the lease, or zero if it is not known.
    cluster: u64,
    origin: Instant,
    /// Milliseconds after `origin`.
    deadline: AtomicU64,
    /// In seconds.
    ttl: AtomicU64,
    /// Set if the lease is revoked when its handle is dropped.
    revoke_on_drop: OnceLock<RevocableLease>,
    subscribers: Mutex<LeaseSubscribers>,
}

#[derive(Default)]
struct LeaseSubscribers {
    queues: Vec<Arc<EventQueue>>,
    /// Whether the lease was reported as at risk, and not as renewed since.
    at_risk: bool,
    lost: Option<LeaseLost>,
    closed: bool,
}

impl LeaseCell {
    pub(crate) fn new(id: i64, cluster: u64, ttl: Duration, deadline: Instant) -> Self {
        let cell = Self {
            id,
            cluster,
            origin: now(),
            deadline: AtomicU64::new(0),
            ttl: AtomicU64::new(0),
            revoke_on_drop: OnceLock::new(),
            subscribers: Mutex::default(),
        };
        cell.set_deadline(ttl, deadline);
        cell
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Returns whether a cluster other than this one granted the lease. Returns `false` if one of them is not known.
    pub(crate) fn is_of_other_cluster(&self, cluster: u64) -> bool {
        self.cluster != 0 && cluster != 0 && self.cluster != cluster
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl.load(Ordering::Relaxed))
    }

    /// Returns the time until the deadline at `now`, or zero if the lease is lost.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        if self.lost().is_some() {
            return Duration::ZERO;
        }
        self.deadline().saturating_duration_since(now)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.origin + Duration::from_millis(self.deadline.load(Ordering::Relaxed))
    }

    pub(crate) fn set_revoke_on_drop(&self, counted: RevocableLease) {
        // An error means that it is set already.
        let _ = self.revoke_on_drop.set(counted);
    }

    pub(crate) fn revoke_on_drop(&self) -> bool {
        self.revoke_on_drop.get().is_some()
    }

    fn set_deadline(&self, ttl: Duration, deadline: Instant) {
        let millis = deadline.saturating_duration_since(self.origin).as_millis();
        self.ttl.store(ttl.as_secs(), Ordering::Relaxed);
        self.deadline
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Stores the new deadline and reports it.
    pub(crate) fn report_renewed(&self, ttl: Duration, deadline: Instant) {
        self.set_deadline(ttl, deadline);
        let deadline = to_monotonic(deadline);
        self.report(|subscribers| {
            if std::mem::take(&mut subscribers.at_risk) {
                LeaseEvent::Recovered { deadline }
            } else {
                LeaseEvent::Renewed { deadline }
            }
        });
    }

    pub(crate) fn report_at_risk(&self, deadline: Instant) {
        let deadline = to_monotonic(deadline);
        self.report(|subscribers| {
            subscribers.at_risk = true;
            LeaseEvent::AtRisk { deadline }
        });
    }

    pub(crate) fn report_lost(&self, reason: LeaseLost) {
        self.report(|subscribers| {
            subscribers.lost = Some(reason);
            LeaseEvent::Lost(reason)
        });
    }

    /// Sends the event that `update` returns to every subscriber. Does nothing after the lease was lost or closed.
    fn report(&self, update: impl FnOnce(&mut LeaseSubscribers) -> LeaseEvent) {
        let mut subscribers = self.lock();
        if subscribers.lost.is_some() || subscribers.closed {
            return;
        }
        let event = update(&mut subscribers);
        // A queue without another owner has no reader any more.
        subscribers
            .queues
            .retain(|queue| Arc::strong_count(queue) > 1);
        for queue in &subscribers.queues {
            queue.push(event);
        }
    }

    /// Ends every subscription.
    pub(crate) fn close(&self) {
        let mut subscribers = self.lock();
        subscribers.closed = true;
        for queue in subscribers.queues.drain(..) {
            queue.close();
        }
    }

    /// Subscribes to the events from now on. A lost lease yields only its end.
    pub(crate) fn events(&self) -> LeaseEvents {
        let queue = Arc::new(EventQueue::default());
        let mut subscribers = self.lock();
        if let Some(reason) = subscribers.lost {
            queue.push(LeaseEvent::Lost(reason));
        } else if subscribers.closed {
            queue.close();
        } else {
            subscribers.queues.push(queue.clone());
        }
        LeaseEvents::new(queue)
    }

    pub(crate) fn lost(&self) -> Option<LeaseLost> {
        self.lock().lost
    }

    fn lock(&self) -> MutexGuard<'_, LeaseSubscribers> {
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease in a message to the keeper. If the keeper never receives it, the client was shut down, and dropping the
/// message reports the lease as lost.
pub(crate) struct UndeliveredLease(Option<Arc<LeaseCell>>);

impl UndeliveredLease {
    pub(crate) fn new(cell: Arc<LeaseCell>) -> Self {
        Self(Some(cell))
    }

    /// Takes the lease out of its message.
    pub(crate) fn receive(&mut self) -> Option<Arc<LeaseCell>> {
        self.0.take()
    }
}

impl Drop for UndeliveredLease {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            cell.report_lost(LeaseLost::Shutdown);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    const TTL: Duration = Duration::from_secs(6);

    #[tokio::test]
    async fn first_renewal_after_risk_is_a_recovery() {
        let start = now();
        let cell = LeaseCell::new(7, 0, TTL, start + TTL);
        let mut events = cell.events();
        cell.report_renewed(TTL, start + TTL);
        cell.report_at_risk(start + TTL);
        cell.report_renewed(TTL, start + 2 * TTL);
        cell.report_renewed(TTL, start + 2 * TTL);
        let (first, second) = (to_monotonic(start + TTL), to_monotonic(start + 2 * TTL));
        let expected = [
            LeaseEvent::Renewed { deadline: first },
            LeaseEvent::AtRisk { deadline: first },
            LeaseEvent::Recovered { deadline: second },
            LeaseEvent::Renewed { deadline: second },
        ];
        for event in expected {
            assert_eq!(events.next().await, Some(event));
        }
    }

    #[test]
    fn remaining_time_is_zero_after_deadline_and_loss() {
        let start = now();
        let cell = LeaseCell::new(7, 0, TTL, start + TTL);
        // The deadline is stored in whole milliseconds.
        let remaining = cell.remaining(start + TTL / 2);
        assert!(remaining <= TTL / 2 && remaining > TTL / 3);
        assert_eq!(cell.remaining(start + TTL), Duration::ZERO);
        cell.report_lost(LeaseLost::Revoked);
        assert_eq!(cell.remaining(start), Duration::ZERO);
    }
}
