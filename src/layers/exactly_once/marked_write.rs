//! Sends a write together with its marker, and finds out whether it was applied.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    fence::Fences,
    held_slot::{HeldSlot, Resolution, deadline_passed},
    marked_txn::MarkedTxn,
    marker_slot::{Ending, SlotContent},
    reserved_prefix::check_markers_untouched,
    slot_pool::SlotPool,
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Txn, TxnResponse},
    proto::rpc::Rpc,
    request::ClientHandle,
    retry::availability::is_temporary,
    runtime::backoff::Backoff,
};

/// Delays between attempts, each of which is known not to be applied.
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(20), Duration::from_millis(500)).jitter(0.3);

/// A client that can send writes with markers. Implemented by [`Client`].
pub trait MarkingClient: ClientHandle {
    #[doc(hidden)]
    fn marking_client(&self) -> &Client;
}

impl MarkingClient for Client {
    fn marking_client(&self) -> &Client {
        self
    }
}

/// A write that is sent together with a marker.
#[derive(Debug, Clone)]
pub(crate) struct MarkedWrite {
    /// The operation that the user has requested, for errors.
    pub(crate) rpc: Rpc,
    pub(crate) txn: Txn,
    pub(crate) fences: Fences,
}

/// The result of a write that was applied.
#[derive(Debug)]
pub(crate) struct MarkedResponse {
    pub(crate) revision: i64,
    /// Whether the conditions of the transaction held.
    pub(crate) succeeded: bool,
    /// `None` if the response was lost.
    pub(crate) response: Option<TxnResponse>,
}

/// The result of one attempt.
enum AttemptResult {
    Applied(MarkedResponse),
    /// Not applied. With [`Outcome::Rejected`], a proxy may still have another copy of it.
    NotApplied(Error),
    /// Not applied, because the slot is gone: another slot is needed.
    SlotLost,
    /// May have been applied.
    Unknown(Error),
}

impl MarkedWrite {
    /// Sends the write until it is applied once. An error is [`Outcome::Unknown`] only if the outcome could not be found
    /// out before the deadline, or if the marker was deleted.
    pub(crate) async fn send(&self, client: &Client, timeout: Duration) -> Result<MarkedResponse> {
        let sent = self.send_with_marker(client, deadline_in(timeout)).await;
        sent.map_err(|error| error.with_rpc(self.rpc))
    }

    /// Sends the write once, without a marker. An error may have the outcome [`Outcome::Unknown`].
    pub(crate) async fn send_without_marker(
        &self,
        client: &Client,
        timeout: Duration,
    ) -> Result<MarkedResponse> {
        let marked = MarkedTxn::new(&self.txn, &self.fences);
        let request = marked.without_marker().timeout(timeout);
        let sent = request.on(client).await;
        let response = sent.map_err(|error| error.with_rpc(self.rpc))?;
        let revision = response.header.revision;
        let response = marked.unwrap_unmarked(response)?;
        let response = response.ok_or_else(|| self.fences.lost())?;
        Ok(MarkedResponse {
            revision,
            succeeded: response.succeeded,
            response: Some(response),
        })
    }

    async fn send_with_marker(&self, client: &Client, deadline: Instant) -> Result<MarkedResponse> {
        // Invalid input is refused before a lease is granted.
        check_markers_untouched(&self.txn.wire()?, client.marker_prefix())?;
        let pool = SlotPool::of(client);
        let mut backoff = RETRY_BACKOFF.start();
        let mut held = self.acquire(client, &pool, deadline).await?;
        loop {
            if !held.is_usable() {
                held = self.acquire(client, &pool, deadline).await?;
            }
            let error = match self.attempt(client, &mut held, deadline).await {
                AttemptResult::Applied(response) => return Ok(response),
                AttemptResult::SlotLost => continue,
                AttemptResult::Unknown(error) => return Err(error),
                AttemptResult::NotApplied(error) => error,
            };
            let delay = backoff.next_delay(fastrand::f64());
            if !is_temporary(&error) || Instant::now() + delay >= deadline {
                return self.after_rejection(held, error, deadline).await;
            }
            tracing::debug!(%error, "write was not applied, retry");
            tokio::time::sleep(delay).await;
        }
    }

    async fn acquire(
        &self,
        client: &Client,
        pool: &Arc<SlotPool>,
        deadline: Instant,
    ) -> Result<HeldSlot> {
        let slot = pool.acquire(client, deadline).await?;
        Ok(HeldSlot::new(client, pool, slot))
    }

    async fn attempt(
        &self,
        client: &Client,
        held: &mut HeldSlot,
        deadline: Instant,
    ) -> AttemptResult {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return AttemptResult::NotApplied(deadline_passed());
        }
        let marked = MarkedTxn::new(&self.txn, &self.fences);
        let attempt = held.begin();
        // The rest of the time is for finding out the outcome.
        let request = marked
            .with_marker(attempt.slot())
            .timeout(remaining * 3 / 5);
        let error = match request.on(client).await {
            Ok(response) if response.succeeded => {
                let revision = response.header.revision;
                return match marked.unwrap(response) {
                    Ok((ending, response)) => {
                        attempt.end(ending);
                        self.ended(ending, revision, Some(response))
                    }
                    Err(error) => AttemptResult::Unknown(error),
                };
            }
            // This copy was not applied. But a proxy may have sent another copy before.
            Ok(_) => return self.after_failed_condition(held, deadline).await,
            Err(error) => error,
        };
        match error.outcome() {
            Outcome::NotSent => {
                attempt.not_sent();
                AttemptResult::NotApplied(error)
            }
            Outcome::Rejected if error.kind() == ErrorKind::LeaseNotFound => {
                let slot_is_lost = held.lease_has_ended(deadline).await || !marked.uses_lease();
                if !slot_is_lost {
                    return AttemptResult::NotApplied(error);
                }
                held.discard();
                AttemptResult::SlotLost
            }
            Outcome::Rejected => AttemptResult::NotApplied(error),
            Outcome::Unknown => self.after_unknown_outcome(held, error, deadline).await,
        }
    }

    async fn after_failed_condition(
        &self,
        held: &mut HeldSlot,
        deadline: Instant,
    ) -> AttemptResult {
        let found = match held.read(deadline).await {
            Ok(found) => found,
            Err(failed) => {
                let reason =
                    "the condition of the write's marker failed, and the marker could not be read";
                let error = Error::new(failed.kind(), Outcome::Unknown, reason);
                return AttemptResult::Unknown(error.with_source(failed));
            }
        };
        if let Some(result) = self.resolved(&found) {
            return result;
        }
        // If the lease has ended, this drops the other slots as well.
        held.lease_has_ended(deadline).await;
        held.discard();
        AttemptResult::SlotLost
    }

    async fn after_unknown_outcome(
        &self,
        held: &mut HeldSlot,
        error: Error,
        deadline: Instant,
    ) -> AttemptResult {
        match held.resolve(deadline).await {
            Ok(found) if found.content == SlotContent::Ended(Ending::Cancelled) => {
                AttemptResult::NotApplied(error.with_outcome(Outcome::Rejected))
            }
            Ok(found) => self.resolved(&found).unwrap_or_else(|| {
                let reason = "the marker is gone: it was deleted, or the lease of the client's markers has ended";
                let lost = Error::new(ErrorKind::KeyNotFound, Outcome::NotSent, reason);
                AttemptResult::Unknown(error.with_source(lost))
            }),
            Err(failed) => {
                tracing::debug!(%error, reason = %failed, "outcome of a write was not found out");
                AttemptResult::Unknown(error.with_source(failed))
            }
        }
    }

    /// Makes sure that no copy of a rejected write is applied later, and returns its error.
    async fn after_rejection(
        &self,
        mut held: HeldSlot,
        error: Error,
        deadline: Instant,
    ) -> Result<MarkedResponse> {
        if error.outcome() == Outcome::NotSent || !held.is_usable() {
            return Err(error);
        }
        match held.resolve(deadline).await {
            Ok(found) => match self.resolved(&found) {
                Some(AttemptResult::Applied(response)) => Ok(response),
                Some(AttemptResult::NotApplied(fenced)) => Err(fenced),
                _ => Err(error),
            },
            Err(failed)
                if failed.kind() == ErrorKind::PermissionDenied
                    && error.kind() == ErrorKind::PermissionDenied =>
            {
                let denied = held.markers_denied();
                held.discard();
                Err(denied)
            }
            // Cancelled in the background.
            Err(_) => Err(error),
        }
    }

    /// Returns the result that a marker proves. `None` if it proves none, or that the write was cancelled.
    fn resolved(&self, found: &Resolution) -> Option<AttemptResult> {
        match found.content {
            SlotContent::Ended(Ending::Cancelled) | SlotContent::Unchanged | SlotContent::Lost => {
                None
            }
            SlotContent::Ended(ending) => Some(self.ended(ending, found.revision, None)),
        }
    }

    fn ended(&self, ending: Ending, revision: i64, response: Option<TxnResponse>) -> AttemptResult {
        if ending == Ending::Fenced {
            return AttemptResult::NotApplied(self.fences.lost());
        }
        AttemptResult::Applied(MarkedResponse {
            revision,
            succeeded: ending == Ending::Then,
            response,
        })
    }
}
