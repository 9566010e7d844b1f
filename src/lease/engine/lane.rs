//! What the keeper and its leases share, on the one thread they live on.
//!
//! Leases say when to be woken and what to send by writing it here. Only the first word since the keeper looked wakes it,
//! so that it finds the words of all leases that had something to say. And as their deadlines are here, too, the keeper
//! renews a lease with which all is well without waking its actor.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Instant};

use actix::{Addr, Message, WeakAddr};

use super::{
    actor::LeaseActor,
    cell::LeaseCell,
    deadline::Deadline,
    keeper::KeeperActor,
    places::{Asked, Kept, Place, Places, Renewal},
    wheel::Wheel,
};
use crate::lease::events::LeaseEvent;

/// Leases have written into the lane.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Look;

/// The index of the keeper itself on the wheel.
const KEEPER: u32 = 0;

/// A lease that is renewed again can wait for this part of its TTL to be renewed together with others: waking up is most
/// of what a keepalive costs.
const GRAINS: u32 = 48;

/// A handle on the lane; clones share it.
#[derive(Clone)]
pub(crate) struct Lane(Rc<RefCell<State>>);

struct State {
    places: Places,
    wheel: Wheel,
    outbox: Vec<Renewal>,
    /// When the keeper wakes by itself.
    armed: Option<Instant>,
    /// When the keeper has something to look after itself.
    rounds_at: Option<Instant>,
    told: bool,
    keeper: WeakAddr<KeeperActor>,
}

impl Lane {
    pub(crate) fn new(now: Instant, keeper: WeakAddr<KeeperActor>) -> Self {
        Self(Rc::new(RefCell::new(State {
            places: Places::new(),
            wheel: Wheel::new(now),
            outbox: Vec::new(),
            armed: None,
            rounds_at: None,
            told: false,
            keeper,
        })))
    }

    /// For a lease: asks or tells its deadline. `None` once it is kept no more.
    pub(crate) fn deadline<R>(
        &self,
        place: Place,
        ask: impl FnOnce(&mut Deadline) -> R,
    ) -> Option<R> {
        let mut state = self.0.borrow_mut();
        let kept = state.places.get_mut(place)?;
        Some(ask(&mut kept.deadline))
    }

    /// For a lease: sends a keepalive with the next batch.
    pub(crate) fn send(&self, renewal: Renewal) {
        let mut state = self.0.borrow_mut();
        state.outbox.push(renewal);
        state.tell();
    }

    /// For a lease: wakes it at that time.
    pub(crate) fn wake(&self, place: Place, at: Instant) {
        let mut state = self.0.borrow_mut();
        if state.places.get_mut(place).is_some() {
            state.wheel.set(place.index(), at);
            if state.armed.is_none_or(|armed| at < armed) {
                state.tell();
            }
        }
    }

    /// For the keeper: wakes a lease when it wants to be looked at. One whose keepalive was routine has not said so itself.
    pub(crate) fn wake_in_time(&self, place: Place) {
        if let Some(at) = self.deadline(place, |deadline| deadline.expected()) {
            self.wake(place, at);
        }
    }

    /// For the keeper: the keepalive of a lease that waited for a member is sent now.
    pub(crate) fn sent(&self, place: Place, now: Instant) {
        if let Some(at) = self.deadline(place, |deadline| deadline.sent(now)) {
            self.wake(place, at);
        }
    }

    /// A lease that has ended is neither woken nor kept alive any more.
    pub(crate) fn rest(&self, place: Place) {
        let mut state = self.0.borrow_mut();
        if state.places.get_mut(place).is_some() {
            state.wheel.clear(place.index());
        }
        state.outbox.retain(|renewal| renewal.place != Some(place));
    }

    /// For the keeper: a lease that is kept from now on, with its actor.
    pub(crate) fn enter(&self, cell: Arc<LeaseCell>, deadline: Deadline) -> Place {
        let lane = self.clone();
        self.0.borrow_mut().places.enter(|place| Kept {
            deadline,
            asked: Asked::default(),
            actor: LeaseActor::start(cell.clone(), place, lane),
            cell,
        })
    }

    /// For the keeper: a lease that is kept no more.
    pub(crate) fn leave(&self, place: Place) -> Option<Kept> {
        self.rest(place);
        self.0.borrow_mut().places.leave(place)
    }

    /// For the keeper: something about a lease.
    pub(crate) fn kept<R>(&self, place: Place, look: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        self.0.borrow_mut().places.get_mut(place).map(look)
    }

    pub(crate) fn actor(&self, place: Place) -> Option<Addr<LeaseActor>> {
        self.kept(place, |kept| kept.actor.clone())
    }

    /// For the keeper: what is to be sent.
    pub(crate) fn take(&self) -> Vec<Renewal> {
        let mut state = self.0.borrow_mut();
        state.told = false;
        std::mem::take(&mut state.outbox)
    }

    /// For the keeper: puts the keepalives that are due into `outbox` where all is well, calls the others' actors by
    /// `wake`, and tells whether it is time for its own rounds.
    pub(crate) fn due(
        &self,
        now: Instant,
        outbox: &mut Vec<Renewal>,
        mut wake: impl FnMut(&Addr<LeaseActor>),
    ) -> bool {
        let mut state = self.0.borrow_mut();
        let mut rounds = false;
        for index in state.wheel.expired(now) {
            if index == KEEPER {
                rounds = true;
            } else if let Some((place, kept)) = state.places.at(index) {
                if kept.deadline.send_routinely(now) {
                    outbox.push(Renewal {
                        lease: kept.cell.id(),
                        place: Some(place),
                        elsewhere: false,
                        patience: kept.deadline.patience(),
                    });
                } else {
                    wake(&kept.actor);
                }
            }
        }
        if rounds {
            state.rounds_at = None;
        }
        rounds
    }

    /// For the keeper: a keepalive was answered. `false`: not as it should be, its actor has to know.
    pub(crate) fn renew(&self, place: Place, ttl: i64, sent_at: Instant, now: Instant) -> bool {
        let state = &mut *self.0.borrow_mut();
        let Some(kept) = state.places.get_mut(place) else {
            return true;
        };
        let next = kept
            .deadline
            .renew_routinely(ttl, sent_at, now, fastrand::f64());
        let Some(next) = next else {
            return false;
        };
        let grain = kept.deadline.ttl() / GRAINS;
        state.wheel.set_about(place.index(), next, grain);
        let deadline = kept.deadline.deadline();
        kept.cell.note(kept.deadline.ttl(), deadline);
        kept.cell.tell(LeaseEvent::Renewed { deadline });
        true
    }

    /// For the keeper: makes its rounds at that time at the latest.
    pub(crate) fn make_rounds(&self, at: Instant) {
        let mut state = self.0.borrow_mut();
        if state.rounds_at.is_none_or(|before| at < before) {
            state.rounds_at = Some(at);
            state.wheel.set(KEEPER, at);
        }
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

    /// For a keeper that crashed, with a word unread or keepalives in its hands: every lease is looked at in its time.
    pub(crate) fn recover(&self) {
        let state = &mut *self.0.borrow_mut();
        for (index, kept) in state.places.iter() {
            if !kept.deadline.is_ended() {
                state.wheel.set(index, kept.deadline.expected());
            }
        }
        state.rounds_at = None;
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
