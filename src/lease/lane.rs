//! What leases tell their keeper without a message: when to be woken, and what to send.
//!
//! Keeper and leases live on one thread. Only the first word since the keeper looked wakes it, so that it finds the
//! words of all leases that had something to say.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use actix::{Message, WeakAddr};

use super::{keeper::KeeperActor, wheel::Wheel};

/// Leases have written into the lane.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Look;

/// A keepalive that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) lease: i64,
    /// Not by the member that was asked last: it has been silent for longer than `patience`.
    pub(crate) elsewhere: bool,
    pub(crate) patience: Duration,
}

/// A handle on the lane; clones share it.
#[derive(Clone)]
pub(crate) struct Lane(Rc<RefCell<State>>);

struct State {
    wheel: Wheel,
    outbox: Vec<Renewal>,
    /// When the keeper wakes by itself.
    armed: Option<Instant>,
    told: bool,
    keeper: WeakAddr<KeeperActor>,
}

impl Lane {
    pub(crate) fn new(now: Instant, keeper: WeakAddr<KeeperActor>) -> Self {
        Self(Rc::new(RefCell::new(State {
            wheel: Wheel::new(now),
            outbox: Vec::new(),
            armed: None,
            told: false,
            keeper,
        })))
    }

    /// Sends a keepalive with the next batch.
    pub(crate) fn send(&self, renewal: Renewal) {
        let mut state = self.0.borrow_mut();
        state.outbox.push(renewal);
        state.tell();
    }

    /// Wakes a lease at that time.
    pub(crate) fn wake(&self, lease: i64, at: Instant) {
        let mut state = self.0.borrow_mut();
        state.wheel.set(lease, at);
        if state.armed.is_none_or(|armed| at < armed) {
            state.tell();
        }
    }

    /// A lease that has ended is neither woken nor kept alive any more.
    pub(crate) fn forget(&self, lease: i64) {
        let mut state = self.0.borrow_mut();
        state.wheel.clear(lease);
        state.outbox.retain(|renewal| renewal.lease != lease);
    }

    /// For the keeper: what is to be sent.
    pub(crate) fn take(&self) -> Vec<Renewal> {
        let mut state = self.0.borrow_mut();
        state.told = false;
        std::mem::take(&mut state.outbox)
    }

    /// For the keeper: whose time has come.
    pub(crate) fn expired(&self, now: Instant) -> Vec<i64> {
        self.0.borrow_mut().wheel.expired(now)
    }

    /// For the keeper: when to wake, if that is another time than before.
    pub(crate) fn rearm(&self) -> Option<Instant> {
        let mut state = self.0.borrow_mut();
        let next = state.wheel.next();
        if next == state.armed {
            return None;
        }
        state.armed = next;
        next
    }

    /// For the keeper: its timer is gone.
    pub(crate) fn disarm(&self) {
        self.0.borrow_mut().armed = None;
    }

    /// For a keeper that may have crashed with a word unread.
    pub(crate) fn retell(&self) {
        let mut state = self.0.borrow_mut();
        state.told = false;
        state.tell();
    }
}

impl State {
    fn tell(&mut self) {
        if !self.told
            && let Some(keeper) = self.keeper.upgrade()
        {
            self.told = true;
            keeper.do_send(Look);
        }
    }
}
