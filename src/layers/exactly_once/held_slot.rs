//! A marker slot while a write uses it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    marker_slot::{Ending, MarkerSlot, SlotContent},
    slot_pool::SlotPool,
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::txn,
    retry::availability::is_temporary,
    runtime::backoff::Backoff,
};

/// Delays between attempts to resolve an outcome.
const RESOLVE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(20), Duration::from_secs(1)).jitter(0.3);
/// Timeout of one round of such attempts in the background.
const BACKGROUND_ROUND: Duration = Duration::from_secs(5);

/// The content of a slot, as it was read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolution {
    pub(super) content: SlotContent,
    /// The marker in etcd; `None` if the slot is gone.
    pub(super) marker: Option<Bytes>,
    /// Revision of the marker.
    pub(super) revision: i64,
}

/// A slot that a write uses. If it is dropped while a copy of the write may still arrive, the write is cancelled in the
/// background, so that it is not applied at some later time.
pub(super) struct HeldSlot {
    used: UsedSlot,
    state: SlotState,
    /// Whether an attempt of the write was sent.
    in_use: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// Ready for the next write.
    Ready,
    /// A copy of the write may still arrive.
    InDoubt,
    /// Gone, or not usable.
    Discarded,
}

/// A slot, and what is needed to read and change it.
#[derive(Clone)]
struct UsedSlot {
    client: Client,
    pool: Arc<SlotPool>,
    slot: MarkerSlot,
}

impl HeldSlot {
    pub(super) fn new(client: &Client, pool: &Arc<SlotPool>, slot: MarkerSlot) -> Self {
        Self {
            used: UsedSlot {
                client: client.for_background(),
                pool: pool.clone(),
                slot,
            },
            state: SlotState::Ready,
            in_use: false,
        }
    }

    /// Returns the slot for the next attempt, which is in doubt until its end is known.
    pub(super) fn begin(&mut self) -> BegunAttempt<'_> {
        let before = self.state;
        self.state = SlotState::InDoubt;
        self.used.slot.begin_attempt(!self.in_use);
        self.in_use = true;
        BegunAttempt { held: self, before }
    }

    /// Takes over what is known about the slot.
    pub(super) fn settle(&mut self, resolution: &Resolution) {
        self.state = match (&resolution.content, &resolution.marker) {
            (SlotContent::Ended(_), Some(marker)) => {
                self.used.slot.set_marker(marker.clone());
                SlotState::Ready
            }
            (SlotContent::Unchanged, _) => self.state,
            (SlotContent::Ended(_), None) | (SlotContent::Lost, _) => SlotState::Discarded,
        };
    }

    /// Notes that the slot cannot be used again.
    pub(super) fn discard(&mut self) {
        self.state = SlotState::Discarded;
    }

    /// Returns whether the slot can be used for another attempt.
    pub(super) fn is_usable(&self) -> bool {
        self.state != SlotState::Discarded
    }

    /// Returns whether the lease of the slot has ended. Then later writes use another one.
    pub(super) async fn lease_has_ended(&self, deadline: Instant) -> bool {
        let UsedSlot { client, pool, slot } = &self.used;
        pool.lease_has_ended(client, slot.lease(), deadline).await
    }

    /// Finds out how the write has ended. Cancels it if it has not arrived yet, so that it never will be applied.
    pub(super) async fn resolve(&mut self, deadline: Instant) -> Result<Resolution> {
        let resolution = self.used.resolve(deadline).await?;
        self.settle(&resolution);
        Ok(resolution)
    }

    /// Reads the slot.
    pub(super) async fn read(&mut self, deadline: Instant) -> Result<Resolution> {
        let resolution = self.used.read(deadline).await?;
        self.settle(&resolution);
        Ok(resolution)
    }

    /// Returns the error of a user who may not read and write the markers.
    pub(super) fn markers_denied(&self) -> Error {
        self.used.pool.markers_denied()
    }
}

/// An attempt that was begun.
pub(super) struct BegunAttempt<'a> {
    held: &'a mut HeldSlot,
    before: SlotState,
}

impl BegunAttempt<'_> {
    pub(super) fn slot(&self) -> &MarkerSlot {
        &self.held.used.slot
    }

    /// Notes that the attempt has ended in this way.
    pub(super) fn end(self, ending: Ending) {
        let slot = &mut self.held.used.slot;
        slot.set_marker(slot.marker_of(ending));
        self.held.state = SlotState::Ready;
    }

    /// Notes that no byte of the attempt was sent.
    pub(super) fn not_sent(self) {
        self.held.state = self.before;
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        let used = self.used.clone();
        match self.state {
            SlotState::Ready => used.pool.release(used.slot),
            SlotState::InDoubt => {
                let client = used.client.clone();
                client.run(move || {
                    actix_rt::spawn(used.resolve_in_background());
                });
            }
            SlotState::Discarded => {}
        }
    }
}

impl UsedSlot {
    async fn resolve(&self, deadline: Instant) -> Result<Resolution> {
        let mut backoff = RESOLVE_BACKOFF.start();
        loop {
            let error = match self.resolve_once(deadline).await {
                Ok(Some(resolution)) => return Ok(resolution),
                Ok(None) => continue,
                // The lease of the slot has ended, and the slot with it.
                Err(error) if error.kind() == ErrorKind::LeaseNotFound => {
                    return self.read(deadline).await;
                }
                Err(error) => error,
            };
            let delay = backoff.next_delay(fastrand::f64());
            if !is_temporary(&error) || Instant::now() + delay >= deadline {
                return Err(error);
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Makes one attempt. Returns `None` if the slot changed meanwhile.
    async fn resolve_once(&self, deadline: Instant) -> Result<Option<Resolution>> {
        let cancel = txn()
            .when(self.slot.condition())
            .then(self.slot.end(Ending::Cancelled));
        let cancelled = cancel.timeout(remaining(deadline)?).on(&self.client).await;
        let mut marker = Some(self.slot.marker_of(Ending::Cancelled));
        let response = match cancelled {
            // etcd accepts no put, but a delete: a copy of the write fails its condition without the slot.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                marker = None;
                let delete = txn().when(self.slot.condition()).then(self.slot.delete());
                delete
                    .timeout(remaining(deadline)?)
                    .on(&self.client)
                    .await?
            }
            response => response?,
        };
        if response.succeeded {
            return Ok(Some(Resolution {
                content: SlotContent::Ended(Ending::Cancelled),
                marker,
                revision: response.header.revision,
            }));
        }
        let found = self.read(deadline).await?;
        Ok(Some(found).filter(|found| found.content != SlotContent::Unchanged))
    }

    async fn read(&self, deadline: Instant) -> Result<Resolution> {
        let read = self.client.get(self.slot.key());
        let found = read.timeout(remaining(deadline)?).await?;
        let kv = found.kvs.into_iter().next();
        Ok(Resolution {
            content: self.slot.interpret(kv.as_ref().map(|kv| &kv.value)),
            revision: kv.as_ref().map_or(0, |kv| kv.mod_revision),
            marker: kv.map(|kv| kv.value),
        })
    }

    /// Resolves a write whose caller waits no longer.
    async fn resolve_in_background(mut self) {
        let stopping = self.client.holders().stop_signal();
        let resolved = tokio::select! {
            resolved = self.resolve_until_known() => resolved,
            () = stopping.wait() => None,
        };
        if let Some(marker) = resolved {
            self.slot.set_marker(marker);
            self.pool.release(self.slot);
        }
    }

    /// Returns the marker of the slot, or `None` if the slot cannot be used again.
    async fn resolve_until_known(&self) -> Option<Bytes> {
        loop {
            match self.resolve(deadline_in(BACKGROUND_ROUND)).await {
                Ok(Resolution {
                    content: SlotContent::Ended(_),
                    marker,
                    ..
                }) => return marker,
                Err(error) if is_temporary(&error) => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }
}

fn remaining(deadline: Instant) -> Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return Err(deadline_passed());
    }
    Ok(remaining)
}

pub(super) fn deadline_passed() -> Error {
    Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, "")
}
