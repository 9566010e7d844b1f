//! State shared by the handle of a session, its actor, and its locks and elections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{broadcast, watch};

use super::{
    SessionEvent, late_keys::LateKeys, local_mutexes::LocalMutexes, session_lease::LeaseStatusCell,
};
use crate::{
    lease::{Lease, LeaseLost},
    runtime::holders::StopSignal,
};

/// Events buffered per reader. A reader that is further behind loses the oldest ones.
const EVENT_BUFFER: usize = 64;

pub(in crate::recipes) struct SessionState {
    lease_and_keys: Mutex<LeaseAndKeys>,
    /// Locked while keys are written, so that no key is put with a lease that is being replaced.
    pub(super) key_writes: tokio::sync::Mutex<()>,
    pub(super) events: broadcast::Sender<SessionEvent>,
    pub(super) lost: watch::Sender<Option<LeaseLost>>,
    pub(super) lease_status: LeaseStatusCell,
    /// Set when the client begins to shut down, before the lease is lost.
    pub(super) client_stops: StopSignal,
    /// A session has one key per lock: its tasks wait here before they use that key.
    pub(in crate::recipes) local_mutexes: LocalMutexes,
    pub(super) late_keys: LateKeys,
}

pub(super) struct LeaseAndKeys {
    /// `None` once the session is lost or closed.
    pub(super) lease: Option<Lease>,
    /// Every lease of this session so far. Keys bound to any of them belong to the session.
    pub(super) all_leases: Vec<i64>,
    pub(super) keys: HashMap<Bytes, BoundKey>,
    /// Keys that belong to another client, found while healing. Published with [`SessionEvent::Healed`].
    pub(super) taken: Vec<Bytes>,
    /// Whether the handle is gone. A closed session accepts no new lease.
    closed: bool,
}

/// The last put of a key by this session.
#[derive(Clone)]
pub(super) struct BoundKey {
    pub(super) value: Bytes,
    pub(super) revision: i64,
}

impl SessionState {
    pub(super) fn new(lease: Lease, client_stops: StopSignal) -> Arc<Self> {
        let id = lease.id();
        Arc::new(Self {
            lease_and_keys: Mutex::new(LeaseAndKeys {
                all_leases: vec![id],
                lease: Some(lease),
                keys: HashMap::new(),
                taken: Vec::new(),
                closed: false,
            }),
            key_writes: tokio::sync::Mutex::new(()),
            events: broadcast::Sender::new(EVENT_BUFFER),
            lost: watch::Sender::new(None),
            lease_status: LeaseStatusCell::new(id),
            client_stops,
            local_mutexes: LocalMutexes::default(),
            late_keys: LateKeys::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LeaseAndKeys> {
        self.lease_and_keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the lease. Returns `false` and drops the new lease if the session is closed.
    pub(super) fn replace_lease(&self, lease: Lease) -> bool {
        let id = lease.id();
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(lease);
            return false;
        }
        let previous = state.lease.replace(lease);
        drop(state);
        // The server may still have a lease whose end was never confirmed: dropping it revokes it.
        drop(previous);
        self.lease_status.replace_lease(id);
        true
    }

    /// Marks the session as lost for good.
    pub(super) fn end(&self, reason: LeaseLost) {
        drop(self.lock().lease.take());
        self.publish(SessionEvent::Lost(reason));
        self.lost.send_replace(Some(reason));
        self.lease_status.notify();
    }

    /// Ends a session whose actor has stopped although the session is neither lost nor closed: the client was shut
    /// down.
    pub(super) fn end_if_open(&self) {
        if !self.lock().closed && self.lost.borrow().is_none() {
            self.lease_status.set_lost(LeaseLost::Shutdown);
            self.end(LeaseLost::Shutdown);
        }
    }

    /// Closes the session and returns its lease.
    pub(super) fn close(&self) -> Option<Lease> {
        // First, because without a lease the remaining time is zero, which would look like a missed deadline.
        self.lease_status.close();
        let lease = {
            let mut state = self.lock();
            state.closed = true;
            state.lease.take()
        };
        self.lease_status.notify();
        lease
    }

    /// Returns whether the session is lost for good or closed. Changes of the lease's status notify of it as well.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().closed || self.lost.borrow().is_some()
    }

    /// Returns how long the server is certain to have the current lease. With `id`: zero if another lease is current.
    pub(super) fn remaining(&self, id: Option<i64>) -> Duration {
        let state = self.lock();
        let is_expected = |lease: &&Lease| id.is_none_or(|id| id == lease.id());
        let lease = state.lease.as_ref().filter(is_expected);
        lease.map_or(Duration::ZERO, Lease::remaining)
    }

    pub(super) fn publish(&self, event: SessionEvent) {
        // An error means that there is no reader.
        let _ = self.events.send(event);
    }
}
