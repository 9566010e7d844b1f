//! A marker slot while a write uses it.

use std::{sync::Arc, time::Duration};

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

/// Delays between attempts to find out an outcome.
const RESOLVE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(20), Duration::from_secs(1)).jitter(0.3);
/// Longest time of such an attempt, if it runs in the background.
const BACKGROUND_ATTEMPT: Duration = Duration::from_secs(5);

/// What a slot says about the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolution {
    pub(super) content: SlotContent,
    /// Revision of the marker.
    pub(super) revision: i64,
}

/// A slot that a write uses. If it is dropped while a copy of the write may still arrive, the write is cancelled in the
/// background, so that it is not applied at some later time.
pub(super) struct HeldSlot {
    used: UsedSlot,
    state: SlotState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// Ready for the next write.
    Ready,
    /// A copy of the last write may still arrive.
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
        }
    }

    /// Returns the slot for an attempt, which is in doubt until [`end`](Self::end) or [`unchanged`](Self::unchanged).
    pub(super) fn begin(&mut self) -> &MarkerSlot {
        self.state = SlotState::InDoubt;
        &self.used.slot
    }

    /// Notes that the attempt has ended in this way.
    pub(super) fn end(mut self, ending: Ending) {
        self.used.slot.advance(ending);
        self.state = SlotState::Ready;
    }

    /// Notes that the attempt was not applied and left the slot as it was.
    pub(super) fn unchanged(&mut self) {
        self.state = SlotState::Ready;
    }

    /// Notes that the slot cannot be used again.
    pub(super) fn discard(mut self) {
        self.state = SlotState::Discarded;
    }

    /// Returns whether the lease of the slot has ended. Then other leases are used for later writes.
    pub(super) async fn lease_has_ended(&self, deadline: Instant) -> bool {
        let UsedSlot { client, pool, slot } = &self.used;
        let timeout = deadline.saturating_duration_since(Instant::now());
        pool.check_lease(client, slot.lease(), timeout).await
    }

    /// Finds out how the attempt has ended. Cancels it if it has not arrived yet, so that it never will be applied.
    pub(super) async fn resolve(&self, deadline: Instant) -> Result<Resolution> {
        self.used.resolve(deadline).await
    }

    /// Reads the slot.
    pub(super) async fn read(&self, deadline: Instant) -> Result<Resolution> {
        self.used.read(deadline).await
    }

    /// Returns the error of a user who may not write the marker.
    pub(super) fn markers_denied(&self) -> Error {
        let reason = format!(
            "the user may not read and write the client's markers under `{}`, so nothing was written",
            self.used.pool.prefix().escape_ascii()
        );
        Error::new(ErrorKind::MarkersDenied, Outcome::Rejected, reason)
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
                Err(error) => error,
            };
            // Nothing can be cancelled: the slot cannot be created without its lease.
            if error.kind() == ErrorKind::LeaseNotFound {
                return Ok(Resolution {
                    content: SlotContent::Lost,
                    revision: 0,
                });
            }
            let delay = backoff.next_delay(fastrand::f64());
            if !is_temporary(&error) || Instant::now() + delay >= deadline {
                return Err(error);
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Makes one attempt. Returns `None` if the slot was deleted and created again in between.
    async fn resolve_once(&self, deadline: Instant) -> Result<Option<Resolution>> {
        let cancel = txn()
            .when(self.slot.condition())
            .then(self.slot.end(Ending::Cancelled));
        let remaining = deadline.saturating_duration_since(Instant::now());
        let response = cancel.timeout(remaining).on(&self.client).await?;
        if response.succeeded {
            return Ok(Some(Resolution {
                content: SlotContent::Ended(Ending::Cancelled),
                revision: response.header.revision,
            }));
        }
        let found = self.read(deadline).await?;
        Ok(Some(found).filter(|found| found.content != SlotContent::Unchanged))
    }

    async fn read(&self, deadline: Instant) -> Result<Resolution> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let found = self.client.get(self.slot.key()).timeout(remaining).await?;
        let kv = found.kvs.first();
        Ok(Resolution {
            content: self.slot.interpret(kv.map(|kv| &kv.value)),
            revision: kv.map_or(0, |kv| kv.mod_revision),
        })
    }

    /// Resolves the attempt without a deadline, for a write whose caller waits no longer.
    async fn resolve_in_background(mut self) {
        while !self.client.holders().is_stopping() {
            match self.resolve(deadline_in(BACKGROUND_ATTEMPT)).await {
                Ok(Resolution {
                    content: SlotContent::Ended(ending),
                    ..
                }) => {
                    self.slot.advance(ending);
                    self.pool.release(self.slot);
                    return;
                }
                Err(error) if is_temporary(&error) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}
