//! State that the keeper and the lease actors share on their thread.
//!
//! Lease actors write the time of the next check and the keepalives to send. Only the first write after a drain wakes
//! the keeper; later writes are batched. The deadlines are stored here as well, so that the keeper performs routine
//! renewals by itself, and a panic of an actor loses no deadline.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Addr, WeakAddr};

use super::{
    clock::later,
    deadline::Deadline,
    keeper::{KeeperActor, KeptLeasesChanged},
    lease_actor::{KeepAliveDue, KeepAliveResponded, LeaseActor},
    lease_cell::LeaseCell,
    lease_slab::{LeaseSlab, LeaseSlot},
    timer_wheel::TimerWheel,
};
use crate::connection::EndpointId;

/// Index of the keeper's own stream check on the timer wheel.
const STREAM_CHECK: u32 = 0;

/// The next keepalive of a renewed lease may be late by up to the TTL divided by this, so that more leases are renewed
/// together.
const SLACK_DIVISOR: u32 = 48;

/// A lease that is kept alive.
pub(crate) struct KeptLease {
    pub(crate) deadline: Deadline,
    pub(crate) last_keepalive: LastKeepAlive,
    pub(crate) cell: Arc<LeaseCell>,
    pub(crate) actor: Addr<LeaseActor>,
}

/// Destination of the last keepalive of a lease.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LastKeepAlive {
    pub(crate) stream: u64,
    pub(crate) member: Option<EndpointId>,
    /// Whether the next keepalive waits for a ready member.
    pub(crate) waiting: bool,
}

/// A keepalive to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedKeepAlive {
    pub(crate) lease: i64,
    /// Slot of a kept lease.
    pub(crate) slot: Option<LeaseSlot>,
    /// Whether to avoid the last member, which did not respond within `response_timeout`.
    pub(crate) elsewhere: bool,
    pub(crate) response_timeout: Duration,
}

impl KeptLease {
    pub(crate) fn queued_keepalive(&self, slot: LeaseSlot, elsewhere: bool) -> QueuedKeepAlive {
        QueuedKeepAlive {
            lease: self.cell.id(),
            slot: Some(slot),
            elsewhere,
            response_timeout: self.deadline.response_timeout(),
        }
    }
}

/// The leases that a client keeps alive. Clones share the same leases.
#[derive(Clone)]
pub(crate) struct KeptLeases(Rc<RefCell<KeptLeasesInner>>);

struct KeptLeasesInner {
    leases: LeaseSlab<KeptLease>,
    wheel: TimerWheel,
    queue: Vec<QueuedKeepAlive>,
    /// Time at which the keeper's timer fires.
    timer_at: Option<Instant>,
    /// Time of the keeper's next stream check.
    stream_check_at: Option<Instant>,
    /// Whether a [`KeptLeasesChanged`] is on its way to the keeper.
    notified: bool,
    keeper: WeakAddr<KeeperActor>,
}

/// Methods for lease actors.
impl KeptLeases {
    /// Calls `f` with a kept lease. Returns `None` if it is kept no longer.
    pub(crate) fn with<R>(
        &self,
        slot: LeaseSlot,
        f: impl FnOnce(&mut KeptLease) -> R,
    ) -> Option<R> {
        self.0.borrow_mut().leases.get_mut(slot).map(f)
    }

    /// Sends a keepalive with the next batch.
    pub(crate) fn queue(&self, keepalive: QueuedKeepAlive) {
        let mut inner = self.0.borrow_mut();
        inner.queue.push(keepalive);
        inner.notify_keeper();
    }

    /// Sets the time of a lease's next check.
    pub(crate) fn check_at(&self, slot: LeaseSlot, at: Instant) {
        let mut inner = self.0.borrow_mut();
        if inner.leases.get_mut(slot).is_some() {
            inner.wheel.set(slot.index(), at);
            if inner.timer_at.is_none_or(|timer_at| at < timer_at) {
                inner.notify_keeper();
            }
        }
    }

    /// Removes the timer and the queued keepalives of a lease.
    pub(crate) fn stop(&self, slot: LeaseSlot) {
        let mut inner = self.0.borrow_mut();
        if inner.leases.get_mut(slot).is_some() {
            inner.wheel.clear(slot.index());
        }
        inner.queue.retain(|keepalive| keepalive.slot != Some(slot));
    }
}

/// Methods for the keeper.
impl KeptLeases {
    pub(crate) fn new(now: Instant, keeper: WeakAddr<KeeperActor>) -> Self {
        Self(Rc::new(RefCell::new(KeptLeasesInner {
            leases: LeaseSlab::new(),
            wheel: TimerWheel::new(now),
            queue: Vec::new(),
            timer_at: None,
            stream_check_at: None,
            notified: false,
            keeper,
        })))
    }

    /// Adds a lease and starts its actor.
    pub(crate) fn insert(&self, cell: Arc<LeaseCell>, deadline: Deadline) -> LeaseSlot {
        let leases = self.clone();
        self.0.borrow_mut().leases.insert(|slot| KeptLease {
            deadline,
            last_keepalive: LastKeepAlive::default(),
            actor: LeaseActor::start(cell.clone(), slot, leases),
            cell,
        })
    }

    pub(crate) fn remove(&self, slot: LeaseSlot) -> Option<KeptLease> {
        self.stop(slot);
        self.0.borrow_mut().leases.remove(slot)
    }

    /// Sets the timer of a lease whose keepalive was sent without one.
    pub(crate) fn check_as_planned(&self, slot: LeaseSlot) {
        if let Some(at) = self.with(slot, |kept| kept.deadline.next_check()) {
            self.check_at(slot, at);
        }
    }

    /// Restarts the response timeout of a keepalive that waited for a ready member.
    pub(crate) fn handle_delayed_send(&self, slot: LeaseSlot, now: Instant) {
        if let Some(at) = self.with(slot, |kept| kept.deadline.handle_delayed_send(now)) {
            self.check_at(slot, at);
        }
    }

    /// Removes and returns the keepalives to send.
    pub(crate) fn take_queue(&self) -> Vec<QueuedKeepAlive> {
        let mut inner = self.0.borrow_mut();
        inner.notified = false;
        std::mem::take(&mut inner.queue)
    }

    /// Checks the leases that are due: adds routine keepalives to `keepalives` and wakes the actors of the other
    /// leases. Returns whether the keeper's stream check is due.
    pub(crate) fn check_due(&self, now: Instant, keepalives: &mut Vec<QueuedKeepAlive>) -> bool {
        let inner = &mut *self.0.borrow_mut();
        let mut stream_check = false;
        for index in inner.wheel.take_due(now) {
            if index == STREAM_CHECK {
                stream_check = true;
            } else if let Some((slot, kept)) = inner.leases.at(index) {
                let Some(check) = kept.deadline.routine_check(now, fastrand::f64()) else {
                    kept.actor.do_send(KeepAliveDue);
                    continue;
                };
                if check.send {
                    keepalives.push(kept.queued_keepalive(slot, false));
                }
                // The stream check finds a late response, so most leases need no timer for it.
                let late_at = later(now, kept.deadline.response_timeout());
                if !check.send || check.next_check < late_at {
                    inner.wheel.set(index, check.next_check);
                }
            }
        }
        if stream_check {
            inner.stream_check_at = None;
        }
        stream_check
    }

    /// Handles the response to the keepalive sent at `sent_at`, or wakes the lease's actor to handle it.
    pub(crate) fn handle_response(
        &self,
        slot: LeaseSlot,
        ttl: i64,
        sent_at: Instant,
        now: Instant,
    ) {
        let inner = &mut *self.0.borrow_mut();
        let Some(kept) = inner.leases.get_mut(slot) else {
            return;
        };
        let deadline = &mut kept.deadline;
        let Some(renewal) = deadline.routine_renewal(ttl, sent_at, now, fastrand::f64()) else {
            kept.actor.do_send(KeepAliveResponded { ttl, sent_at });
            return;
        };
        let slack = match deadline.in_flight_since() {
            Some(_) => Duration::ZERO,
            None => deadline.ttl() / SLACK_DIVISOR,
        };
        inner
            .wheel
            .set_with_slack(slot.index(), renewal.next_check, slack);
        kept.cell.report_renewed(deadline.ttl(), renewal.deadline);
    }

    /// Schedules the keeper's stream check at `at` or earlier.
    pub(crate) fn schedule_stream_check(&self, at: Instant) {
        let mut inner = self.0.borrow_mut();
        if inner.stream_check_at.is_none_or(|before| at < before) {
            inner.stream_check_at = Some(at);
            inner.wheel.set(STREAM_CHECK, at);
        }
    }

    /// Returns the new time of the keeper's timer, or `None` if it did not change.
    pub(crate) fn timer_change(&self) -> Option<Instant> {
        let mut inner = self.0.borrow_mut();
        let next = inner.wheel.next();
        if next == inner.timer_at {
            return None;
        }
        inner.timer_at = next;
        next
    }

    /// Records that the keeper has no running timer.
    pub(crate) fn clear_timer(&self) {
        self.0.borrow_mut().timer_at = None;
    }

    /// Restores the timers after a panic of the keeper, which may have lost a notification or keepalives.
    pub(crate) fn recover_from_panic(&self) {
        let inner = &mut *self.0.borrow_mut();
        for (index, kept) in inner.leases.iter() {
            if !kept.deadline.is_ended() {
                inner.wheel.set(index, kept.deadline.next_check());
            }
        }
        inner.stream_check_at = None;
        inner.notified = false;
        inner.notify_keeper();
    }
}

impl KeptLeasesInner {
    fn notify_keeper(&mut self) {
        if !self.notified
            && let Some(keeper) = self.keeper.upgrade()
        {
            self.notified = true;
            keeper.do_send(KeptLeasesChanged);
        }
    }
}
