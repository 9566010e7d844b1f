//! The marker slots of a client, and the lease that they are bound to.
//!
//! A write takes a free slot, or creates one if there is none. Slots are created by tasks of the client, so that a write
//! whose future is dropped leaves a slot for the next write, and not a key that nobody knows.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, Semaphore, oneshot},
    time::{Instant, timeout_at},
};

use super::marker_slot::MarkerSlot;
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    lease::Lease,
    request::ClientHandle,
    retry::availability::{RETRY_DELAY, is_temporary},
};

/// How long the markers of a process that has died stay in etcd.
const MARKER_TTL: Duration = Duration::from_secs(30);
/// Slots that are created at once. Also limits those that are created for writes whose futures were dropped.
const MAX_CREATING: usize = 64;

/// The slots of one client.
pub(super) struct SlotPool {
    prefix: Bytes,
    /// Whether the prefix is that within a namespace.
    in_namespace: bool,
    slots: Mutex<Slots>,
    /// Notified when a slot becomes free.
    freed: Notify,
    creating: Arc<Semaphore>,
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
            in_namespace: client.view().namespace().is_some(),
            slots: Mutex::default(),
            freed: Notify::new(),
            creating: Arc::new(Semaphore::new(MAX_CREATING)),
            granting: tokio::sync::Mutex::default(),
        })
    }

    /// Returns a slot that no other write uses. An error means that the write was not sent.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        client: &Client,
        deadline: Instant,
    ) -> Result<MarkerSlot> {
        loop {
            let freed = self.freed.notified();
            if let Some(slot) = self.take_free() {
                return Ok(slot);
            }
            let created = tokio::select! {
                biased;
                () = freed => Ok(()),
                created = timeout_at(deadline, self.create(client, deadline)) => {
                    created.unwrap_or_else(|_| Err(no_slot_in_time()))
                }
            };
            let Err(error) = created else {
                continue;
            };
            let error = error.with_outcome(Outcome::NotSent);
            if !is_temporary(&error) || Instant::now() + RETRY_DELAY >= deadline {
                return Err(error);
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Takes back a slot that no write uses any more.
    pub(super) fn release(&self, slot: MarkerSlot) {
        let mut slots = self.slots();
        if slots.lease.as_ref().map(Lease::id) == Some(slot.lease()) {
            slots.free.push(slot);
            drop(slots);
            self.freed.notify_one();
        }
    }

    /// Returns whether the lease of a slot has ended. Then later writes use another one.
    pub(super) async fn lease_has_ended(
        &self,
        client: &Client,
        lease: i64,
        deadline: Instant,
    ) -> bool {
        // The response makes the client report the loss at once instead of at the next keepalive.
        let timeout = deadline.saturating_duration_since(Instant::now());
        let renewed = client.keep_alive_once(lease).timeout(timeout).await;
        let ended = renewed.is_err_and(|error| error.kind() == ErrorKind::LeaseNotFound);
        if ended {
            self.forget(lease);
        }
        ended
    }

    /// Returns the error of a user who may not read and write the markers.
    pub(super) fn markers_denied(&self) -> Error {
        let place = if self.in_namespace {
            " of the client's namespace"
        } else {
            ""
        };
        let reason = format!(
            "the user may not read and write the markers of the client under `{}`{place}, so nothing was written",
            self.prefix.escape_ascii()
        );
        Error::new(ErrorKind::MarkersDenied, Outcome::Rejected, reason)
    }

    /// Creates a slot and adds it to the free ones, also if this future is dropped meanwhile.
    async fn create(self: &Arc<Self>, client: &Client, deadline: Instant) -> Result<()> {
        let permit = self.creating.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::shut_down())?;
        let (sender, created) = oneshot::channel();
        let (pool, background) = (self.clone(), client.for_background());
        client.run(move || {
            actix_rt::spawn(async move {
                let result = pool.create_slot(&background, deadline).await;
                drop(permit);
                // An error means that the caller no longer waits.
                let _ = sender.send(result);
            });
        });
        created.await.map_err(|_| Error::shut_down())?
    }

    async fn create_slot(&self, client: &Client, deadline: Instant) -> Result<()> {
        let slot = self.new_slot(client, deadline).await?;
        let timeout = deadline.saturating_duration_since(Instant::now());
        // If the response is lost, the slot is given up: its name is not used again.
        match slot.create().timeout(timeout).on(client).await {
            Ok(_) => self.release(slot),
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => self.forget(slot.lease()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(self.markers_denied());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns a slot with a new name. Grants a lease if there is none.
    async fn new_slot(&self, client: &Client, deadline: Instant) -> Result<MarkerSlot> {
        let _granting = self.granting.lock().await;
        if let Some(slot) = self.name_slot() {
            return Ok(slot);
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        let grant = client.lease(MARKER_TTL).keep_alive().revoke_on_drop();
        let lease = grant.timeout(timeout).await?;
        let granted = Slots {
            lease: Some(lease),
            ..Slots::default()
        };
        let previous = std::mem::replace(&mut *self.slots(), granted);
        drop(previous);
        self.name_slot().ok_or_else(|| {
            let reason = "the lease of the client's markers was lost when it was granted";
            Error::new(ErrorKind::Unavailable, Outcome::NotSent, reason)
        })
    }

    fn name_slot(&self) -> Option<MarkerSlot> {
        let mut slots = self.slots();
        let lease = slots.lease.as_ref().filter(|lease| !lease.is_lost())?.id();
        slots.created += 1;
        let name = format!("{lease:x}/{}", slots.created);
        let key = [&self.prefix[..], name.as_bytes()].concat();
        Some(MarkerSlot::new(key.into(), lease))
    }

    fn take_free(&self) -> Option<MarkerSlot> {
        let mut slots = self.slots();
        let lease = slots.lease.as_ref()?;
        if lease.is_lost() {
            slots.free.clear();
        }
        slots.free.pop()
    }

    /// Drops a lease that has ended, with its slots.
    fn forget(&self, lease: i64) {
        let mut slots = self.slots();
        if slots.lease.as_ref().map(Lease::id) == Some(lease) {
            let ended = std::mem::take(&mut *slots);
            drop(slots);
            // Dropping a lease sends a message, which must not happen under the lock.
            drop(ended);
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_slot_in_time() -> Error {
    let reason = "the marker of the write could not be prepared before the deadline";
    Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason)
}
