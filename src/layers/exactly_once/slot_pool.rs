//! The marker slots of a client, and the lease that they are bound to.
//!
//! A client has as many slots as it has had writes in flight at once. They are bound to one lease of the client, which
//! is granted for the first write and revoked at the end of the client.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::marker_slot::MarkerSlot;
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    lease::Lease,
};

/// How long the markers of a process that has died stay in etcd.
const MARKER_TTL: Duration = Duration::from_secs(30);

/// The slots of one client.
pub(super) struct SlotPool {
    prefix: Bytes,
    slots: Mutex<Slots>,
    /// Held while a lease is granted.
    granting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Slots {
    lease: Option<Lease>,
    /// Slots that no write uses. All are bound to `lease`.
    free: Vec<MarkerSlot>,
    /// Number of slots created so far with `lease`.
    created: u64,
}

impl SlotPool {
    /// Returns the pool of a client.
    pub(super) fn of(client: &Client) -> Arc<Self> {
        client.extension(|| Self {
            prefix: client.marker_prefix().clone(),
            slots: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// Returns a slot that no other write uses. Fails with [`Outcome::NotSent`] if a lease is needed and cannot be
    /// granted.
    pub(super) async fn acquire(&self, client: &Client, deadline: Instant) -> Result<MarkerSlot> {
        if let Some(slot) = self.try_acquire() {
            return Ok(slot);
        }
        let granting = timeout_at(deadline, self.granting.lock()).await;
        let _granting = granting.map_err(|_| {
            let reason = "the lease of the client's markers was not granted before the deadline";
            Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason)
        })?;
        loop {
            if let Some(slot) = self.try_acquire() {
                return Ok(slot);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            let grant = client.for_background().lease(MARKER_TTL);
            let grant = grant.keep_alive().revoke_on_drop().timeout(remaining);
            let lease = grant
                .await
                .map_err(|error| error.with_outcome(Outcome::NotSent))?;
            let previous = std::mem::replace(
                &mut *self.slots(),
                Slots {
                    lease: Some(lease),
                    ..Slots::default()
                },
            );
            drop(previous);
        }
    }

    fn try_acquire(&self) -> Option<MarkerSlot> {
        let mut slots = self.slots();
        let lease = slots.lease.as_ref().filter(|lease| !lease.is_lost())?.id();
        if let Some(free) = slots.free.pop() {
            return Some(free);
        }
        slots.created += 1;
        let name = format!("{lease:x}/{}", slots.created);
        let key = [&self.prefix[..], name.as_bytes()].concat();
        Some(MarkerSlot::new(key.into(), lease))
    }

    /// Takes back a slot whose last attempt has ended.
    pub(super) fn release(&self, slot: MarkerSlot) {
        let mut slots = self.slots();
        if slots.lease.as_ref().map(Lease::id) == Some(slot.lease()) {
            slots.free.push(slot);
        }
    }

    /// Uses another lease from now on, if this one has ended.
    pub(super) async fn check_lease(&self, client: &Client, lease: i64, timeout: Duration) -> bool {
        // The response makes the client report the loss at once instead of at the next keepalive.
        let renewed = client.keep_alive_once(lease).timeout(timeout).await;
        let ended = renewed.is_err_and(|error| error.kind() == ErrorKind::LeaseNotFound);
        if ended {
            let mut slots = self.slots();
            if slots.lease.as_ref().map(Lease::id) == Some(lease) {
                let previous = std::mem::take(&mut *slots);
                drop(slots);
                drop(previous);
            }
        }
        ended
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
