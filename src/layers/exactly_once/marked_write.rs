//! Sends a write together with its marker, and finds out what became of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    fence::Fences,
    held_slot::{HeldSlot, Resolution},
    marker_slot::{Ending, MarkerSlot, SlotContent},
    reserved_prefix::check_markers_untouched,
    slot_pool::SlotPool,
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{OpResponse, Txn, TxnResponse, txn},
    request::ClientHandle,
    retry::availability::is_temporary,
    runtime::backoff::Backoff,
};

/// Delays between attempts, each of which is known not to be applied.
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(20), Duration::from_millis(500)).jitter(0.3);
/// Remaining time with which another attempt is not worth starting.
const MIN_ATTEMPT: Duration = Duration::from_millis(50);

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
    /// Not applied, and never will be.
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
        // Invalid input is refused before a lease is granted.
        let wire = self.txn.wire()?;
        check_markers_untouched(&wire, client.marker_prefix())?;
        let deadline = deadline_in(timeout);
        let pool = SlotPool::of(client);
        let mut backoff = RETRY_BACKOFF.start();
        loop {
            let slot = pool.acquire(client, deadline).await?;
            let held = HeldSlot::new(client, &pool, slot);
            match self.attempt(client, held, deadline).await {
                AttemptResult::Applied(response) => return Ok(response),
                AttemptResult::SlotLost => {}
                AttemptResult::NotApplied(error) if is_temporary(&error) => {
                    let delay = backoff.next_delay(fastrand::f64());
                    if Instant::now() + delay + MIN_ATTEMPT >= deadline {
                        return Err(error);
                    }
                    tracing::debug!(%error, "write was not applied, retry");
                    tokio::time::sleep(delay).await;
                }
                AttemptResult::NotApplied(error) | AttemptResult::Unknown(error) => {
                    return Err(error);
                }
            }
        }
    }

    /// Sends the write once, without a marker. An error may have the outcome [`Outcome::Unknown`].
    pub(crate) async fn send_without_marker(
        &self,
        client: &Client,
        timeout: Duration,
    ) -> Result<MarkedResponse> {
        let request = if self.fences.is_empty() {
            self.txn.clone()
        } else {
            txn().when(self.fences.conditions()).then(self.txn.clone())
        };
        let mut response = request.timeout(timeout).on(client).await?;
        let revision = response.header.revision;
        if !self.fences.is_empty() {
            if !response.succeeded {
                return Err(self.fenced());
            }
            response = nested(response)?;
        }
        Ok(MarkedResponse {
            revision,
            succeeded: response.succeeded,
            response: Some(response),
        })
    }

    async fn attempt(
        &self,
        client: &Client,
        mut held: HeldSlot,
        deadline: Instant,
    ) -> AttemptResult {
        let remaining = deadline.saturating_duration_since(Instant::now());
        // The rest is for finding out the outcome.
        let timeout = remaining * 3 / 5;
        let request = self.wire_txn(held.begin()).timeout(timeout);
        let error = match request.on(client).await {
            Ok(response) if response.succeeded => {
                let revision = response.header.revision;
                return match self.unwrap(response) {
                    Ok((ending, response)) => {
                        held.end(ending);
                        self.ended(ending, revision, Some(response))
                    }
                    Err(error) => AttemptResult::Unknown(error),
                };
            }
            // A failed condition proves that this copy was not applied. But a proxy may have sent another copy before.
            Ok(_) => return self.after_failed_condition(held, deadline).await,
            Err(error) => error,
        };
        match (error.kind(), error.outcome()) {
            (ErrorKind::LeaseNotFound, Outcome::NotSent | Outcome::Rejected) => {
                held.unchanged();
                if held.lease_has_ended(deadline).await {
                    held.discard();
                    return AttemptResult::SlotLost;
                }
                AttemptResult::NotApplied(error)
            }
            (ErrorKind::PermissionDenied, _) | (_, Outcome::Unknown) => {
                self.after_unknown_outcome(held, error, deadline).await
            }
            (_, Outcome::NotSent | Outcome::Rejected) => {
                held.unchanged();
                AttemptResult::NotApplied(error)
            }
        }
    }

    async fn after_failed_condition(&self, held: HeldSlot, deadline: Instant) -> AttemptResult {
        match held.read(deadline).await {
            Ok(Resolution {
                content: SlotContent::Ended(ending),
                revision,
            }) => {
                held.end(ending);
                self.ended(ending, revision, None)
            }
            Ok(_) => {
                held.discard();
                AttemptResult::SlotLost
            }
            Err(error) => AttemptResult::Unknown(error.with_outcome(Outcome::Unknown)),
        }
    }

    async fn after_unknown_outcome(
        &self,
        held: HeldSlot,
        error: Error,
        deadline: Instant,
    ) -> AttemptResult {
        match held.resolve(deadline).await {
            Ok(Resolution {
                content: SlotContent::Ended(ending),
                revision,
            }) => {
                held.end(ending);
                match ending {
                    Ending::Cancelled => {
                        AttemptResult::NotApplied(error.with_outcome(Outcome::Rejected))
                    }
                    _ => self.ended(ending, revision, None),
                }
            }
            Ok(_) => {
                held.discard();
                let reason = "its marker was deleted: the lease of the client's markers has ended";
                AttemptResult::Unknown(unresolved(&error, reason))
            }
            Err(denied) if denied.kind() == ErrorKind::PermissionDenied => {
                let denied = held.markers_denied();
                held.discard();
                AttemptResult::NotApplied(denied)
            }
            Err(failed) => AttemptResult::Unknown(unresolved(&error, &failed.brief())),
        }
    }

    fn ended(&self, ending: Ending, revision: i64, response: Option<TxnResponse>) -> AttemptResult {
        let succeeded = match ending {
            Ending::Then => true,
            Ending::Otherwise => false,
            Ending::Fenced => return AttemptResult::NotApplied(self.fenced()),
            // Only a copy of the attempt can be cancelled here, which a proxy has sent before this one.
            Ending::Cancelled => return AttemptResult::SlotLost,
        };
        AttemptResult::Applied(MarkedResponse {
            revision,
            succeeded,
            response,
        })
    }

    fn fenced(&self) -> Error {
        let reason = format!(
            "nothing was written, because {} is no longer held",
            self.fences.names()
        );
        Error::new(ErrorKind::LockLost, Outcome::Rejected, reason)
    }

    /// Returns the transaction that is sent: the write and the marker of its ending, under the condition of the slot.
    fn wire_txn(&self, slot: &MarkerSlot) -> Txn {
        let (conditions, then, otherwise) = self.txn.clone().into_branches();
        let outer = txn().when(slot.condition());
        let applied = |txn: Txn| txn.then(slot.end(Ending::Then)).then(then);
        let with_conditions = |outer: Txn| {
            if conditions.is_empty() {
                return applied(outer);
            }
            let write = applied(txn().when(conditions));
            outer.then(
                write
                    .otherwise(slot.end(Ending::Otherwise))
                    .otherwise(otherwise),
            )
        };
        if self.fences.is_empty() {
            return with_conditions(outer);
        }
        let fenced = with_conditions(txn().when(self.fences.conditions()));
        outer.then(fenced.otherwise(slot.end(Ending::Fenced)))
    }

    /// Returns the ending and the response without the parts that belong to the marker.
    fn unwrap(&self, mut response: TxnResponse) -> Result<(Ending, TxnResponse)> {
        if !self.fences.is_empty() {
            response = nested(response)?;
            if !response.succeeded {
                return Ok((Ending::Fenced, response));
            }
        }
        if self.txn.has_conditions() {
            response = nested(response)?;
        }
        if response.responses.is_empty() {
            return Err(unexpected_response());
        }
        response.responses.remove(0);
        let ending = if response.succeeded {
            Ending::Then
        } else {
            Ending::Otherwise
        };
        Ok((ending, response))
    }
}

/// Returns the response of the only operation of a transaction, which is a transaction.
fn nested(response: TxnResponse) -> Result<TxnResponse> {
    match response.responses.into_iter().next() {
        Some(OpResponse::Txn(nested)) => Ok(nested),
        _ => Err(unexpected_response()),
    }
}

fn unexpected_response() -> Error {
    let reason = "the response of the transaction does not match its operations";
    Error::new(ErrorKind::Protocol, Outcome::Unknown, reason)
}

fn unresolved(error: &Error, reason: &str) -> Error {
    let reason = format!(
        "{}; whether the write was applied could not be found out: {reason} (outcome unknown)",
        error.brief()
    );
    Error::new(error.kind(), Outcome::Unknown, reason)
}
