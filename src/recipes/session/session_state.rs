//! State shared by the handle of a session, its actor, and its locks and elections.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{broadcast, watch};

use super::{
    SessionEvent,
    key_restoration::{KeyOutcome, KeyToRestore},
    late_keys::LateKeys,
    local_mutexes::LocalMutexes,
    own_leases::OwnLeases,
    session_lease::LeaseStatusCell,
};
use crate::{
    error::{Error, ErrorKind},
    lease::{Lease, LeaseLost},
    retry::availability::is_temporary,
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
    pub(super) leases: OwnLeases,
    pub(super) keys: HashMap<Bytes, BoundKey>,
    /// Those of `keys` that were not put with the current lease, and the error of the last attempt.
    pub(super) unrestored: BTreeMap<Bytes, Option<Error>>,
    /// Keys that belong to another client, found while healing. Published with [`SessionEvent::Healed`].
    pub(super) taken: Vec<Bytes>,
    /// Whether the handle is gone. A closed session accepts no new lease.
    closed: bool,
}

/// A key that a healed session could not put again. The session retries it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnrestoredKey {
    /// The key.
    pub key: Bytes,
    /// The kind of the error of the last attempt.
    pub kind: ErrorKind,
    /// The error of the last attempt.
    pub reason: String,
}

/// The last put of a key by this session.
#[derive(Debug, Clone)]
pub(super) struct BoundKey {
    pub(super) value: Bytes,
    pub(super) revision: i64,
}

impl LeaseAndKeys {
    /// Marks every key as not restored: etcd has deleted it with its lease.
    pub(super) fn set_all_unrestored(&mut self) {
        let keys = self.keys.keys();
        self.unrestored = keys.map(|key| (key.clone(), None)).collect();
    }

    pub(super) fn keys_to_restore(&self) -> Vec<KeyToRestore> {
        let keys = self.unrestored.keys();
        keys.filter_map(|key| Some((key.clone(), self.keys.get(key)?.clone())))
            .collect()
    }

    /// Stores the outcome for each key. Returns whether one of them failed for a reason that may pass by itself.
    pub(super) fn apply_restoration(&mut self, outcomes: Vec<(Bytes, KeyOutcome)>) -> bool {
        let mut may_pass = false;
        for (key, outcome) in outcomes {
            match outcome {
                KeyOutcome::Restored { revision } => {
                    self.unrestored.remove(&key);
                    if let Some(bound) = self.keys.get_mut(&key) {
                        bound.revision = revision;
                    }
                }
                KeyOutcome::Taken => {
                    self.unrestored.remove(&key);
                    self.keys.remove(&key);
                    self.taken.push(key);
                }
                KeyOutcome::Failed(error) => {
                    may_pass |= is_temporary(&error);
                    self.unrestored.insert(key, Some(error));
                }
            }
        }
        may_pass
    }

    /// Stores that the session has put a key.
    pub(super) fn insert_key(&mut self, key: Bytes, bound: BoundKey) {
        self.taken.retain(|taken| *taken != key);
        self.unrestored.remove(&key);
        self.keys.insert(key, bound);
    }

    /// Forgets a key.
    pub(super) fn remove_key(&mut self, key: &Bytes) {
        self.unrestored.remove(key);
        self.keys.remove(key);
    }

    /// Returns the keys that an attempt to put has failed for, in their order.
    pub(super) fn unrestored_keys(&self) -> Vec<UnrestoredKey> {
        let failed = self.unrestored.iter();
        let failed = failed.filter_map(|(key, error)| {
            let error = error.as_ref()?;
            Some(UnrestoredKey {
                key: key.clone(),
                kind: error.kind(),
                reason: error.to_string(),
            })
        });
        failed.collect()
    }
}

impl SessionState {
    pub(super) fn new(lease: Lease, client_stops: StopSignal) -> Arc<Self> {
        let id = lease.id();
        Arc::new(Self {
            lease_and_keys: Mutex::new(LeaseAndKeys {
                leases: OwnLeases::new(id),
                lease: Some(lease),
                keys: HashMap::new(),
                unrestored: BTreeMap::new(),
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
