//! The two legs of a hedged watch.
//!
//! Each leg is an actor of its own, with its own stream, cursor, backoff and token renewal. The first leg is the watch:
//! only its actor writes into the consumer's buffer, and its cursor is the position of the watch. The second leg sends
//! complete revisions and its state to the first one, which merges them and decides what to report to the consumer.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use actix::{Addr, WeakAddr};

use super::{WatchActor, leg_status::LegStatuses};

/// Part of an actor in its watch.
pub(super) enum LegRole {
    /// The watch runs on one member.
    Only,
    /// First leg of a hedged watch.
    First(Box<FirstLeg>),
    /// Second leg of a hedged watch.
    Second(Box<SecondLeg>),
}

pub(super) struct FirstLeg {
    pub(super) statuses: LegStatuses,
    /// `None` until the hub has started the second leg.
    pub(super) second: Option<StartedLeg>,
    pub(super) position: WatchPosition,
    /// Number of restarts of the second leg. Its reports of older epochs are ignored.
    pub(super) epoch: u32,
}

/// The second leg, as the first leg knows it.
pub(super) struct StartedLeg {
    pub(super) watch: u64,
    pub(super) address: Addr<WatchActor>,
}

pub(crate) struct SecondLeg {
    pub(super) first: WeakAddr<WatchActor>,
    pub(super) first_watch: u64,
    pub(super) position: WatchPosition,
    pub(super) epoch: u32,
}

/// First revision that the watch has not delivered, shared by both legs: each attaches there.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchPosition(Arc<AtomicI64>);

impl WatchPosition {
    pub(super) fn set(&self, next_revision: i64) {
        self.0.store(next_revision, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl LegRole {
    pub(super) fn first(hedged: bool) -> Self {
        if !hedged {
            return Self::Only;
        }
        Self::First(Box::new(FirstLeg {
            statuses: LegStatuses::new(),
            second: None,
            position: WatchPosition::default(),
            epoch: 0,
        }))
    }

    /// Returns the id of the other leg, which must run on another member.
    pub(super) fn other_watch(&self) -> Option<u64> {
        match self {
            Self::Only => None,
            Self::First(first) => first.second.as_ref().map(|second| second.watch),
            Self::Second(second) => Some(second.first_watch),
        }
    }

    pub(super) fn is_second(&self) -> bool {
        matches!(self, Self::Second(_))
    }
}

impl SecondLeg {
    /// Returns the id of the first leg.
    pub(crate) fn first_watch(&self) -> u64 {
        self.first_watch
    }
}
