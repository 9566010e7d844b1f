//! Enters a double barrier: joins the round and waits until it is complete.

use std::{fmt, future::IntoFuture, time::Duration};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    ClaimHandle, Ownership, OwnershipLost, Participation, check_participants, ready_key,
    round::{CompleteRound, RoundState, round_state},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, OpResponse, get, put},
    layers::read_then_watch::{KeysUpdate, ReadThenWatch},
    recipes::lock_queue::{ClaimEvent, EntryWait, LockQueue, QueueEntry, acquired_within, claim},
    request::ResponseFuture,
    retry::availability::{RETRY_DELAY, is_temporary},
};

/// A request to enter, made by [`DoubleBarrier::enter`](super::DoubleBarrier::enter). Awaiting it waits until the round is
/// complete and returns a [`Participation`]; [`deliver_to`](Self::deliver_to) takes part on behalf of an actor.
///
/// Dropping the future withdraws the participant. The wait continues through outages for as long as the session lives; if
/// the session [heals](crate::recipes::session::SessionBuilder::heal), the participant enters again after a loss of the
/// lease. Fails
/// - with [`ErrorKind::BarrierFull`] if enough others take part in the round that has not ended yet,
/// - with [`ErrorKind::SessionLost`] as soon as the session is lost,
/// - with [`ErrorKind::LockLost`] if the key of the participant is deleted,
/// - with [`ErrorKind::PermissionDenied`] if the user may not read and write the keys,
/// - with [`ErrorKind::InvalidArgument`] if the name is empty or consists of slashes, or if there are no participants.
#[derive(Clone)]
#[must_use = "the participant enters when this is awaited or delivered to an actor"]
pub struct EnterBarrier {
    queue: LockQueue,
    participants: u32,
}

impl EnterBarrier {
    pub(super) fn new(queue: LockQueue, participants: u32) -> Self {
        Self {
            queue,
            participants,
        }
    }

    /// Waits for at most `timeout`. Fails with [`ErrorKind::DeadlineExceeded`] after it, and the participant is withdrawn.
    pub async fn within(self, timeout: Duration) -> Result<Participation> {
        let reason = "the double barrier was not complete within the timeout";
        acquired_within(timeout, reason, self).await
    }

    /// Takes part on behalf of an actor. The actor receives [`ParticipantEvent::Entered`] when the round is complete, and
    /// one last event when the participant has left. Releasing the claim leaves the barrier and waits until all others
    /// have left; dropping the claim, or stopping the actor, leaves in the background.
    pub fn deliver_to(self, recipient: Recipient<ParticipantEvent>) -> ClaimHandle {
        let client = self.queue.client.clone();
        let enter = Self {
            queue: self.queue.for_background(),
            ..self
        };
        let acquire = async move |cancel: &mut oneshot::Receiver<()>| enter.join(cancel).await;
        claim(&client, acquire, recipient)
    }

    async fn enter(self) -> Result<Participation> {
        let (_not_cancelled, mut cancel) = oneshot::channel();
        let inside = self.join(&mut cancel).await?;
        inside.ok_or_else(|| OwnershipLost::Taken.into())
    }

    /// Returns `None` if the request is cancelled.
    async fn join(self, cancel: &mut oneshot::Receiver<()>) -> Result<Option<Participation>> {
        check_participants(self.participants)?;
        let complete = UntilComplete {
            participants: usize::try_from(self.participants).unwrap_or(usize::MAX),
        };
        let joined = self.queue.join_and(&complete, Bytes::new(), cancel).await?;
        let inside = joined.map(|(entry, round)| Participation::new(entry, round));
        inside.transpose()
    }
}

impl IntoFuture for EnterBarrier {
    type Output = Result<Participation>;
    type IntoFuture = ResponseFuture<Participation>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.enter())
    }
}

impl fmt::Debug for EnterBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnterBarrier")
            .field("prefix", &self.queue.keys.prefix)
            .field("participants", &self.participants)
            .finish_non_exhaustive()
    }
}

/// An event of a participant, sent to the actor that takes part.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum ParticipantEvent {
    /// The round is complete.
    Entered(Ownership),
    /// The participant counts as one that has left, or may do so. This is the last event.
    Lost(OwnershipLost),
    /// The participant has left or was withdrawn. This is the last event.
    Left,
    /// The participant cannot enter. This is the last event.
    Failed(Error),
}

impl From<ClaimEvent> for ParticipantEvent {
    fn from(event: ClaimEvent) -> Self {
        match event {
            ClaimEvent::Acquired(ownership) => Self::Entered(ownership),
            ClaimEvent::Lost(loss) => Self::Lost(loss),
            ClaimEvent::Released => Self::Left,
            ClaimEvent::Failed(error) => Self::Failed(error),
        }
    }
}

/// Waits until the round is complete.
struct UntilComplete {
    participants: usize,
}

impl EntryWait for UntilComplete {
    type Output = CompleteRound;

    async fn wait(&self, entry: &QueueEntry) -> Result<CompleteRound> {
        let lease = &entry.ownership.session_lease;
        let round = tokio::select! {
            biased;
            loss = lease.ended_or_client_stops() => Err(loss.into()),
            round = self.complete_round(entry) => round,
            _ = entry.ownership.key_taken() => Err(entry.why_key_gone().await.into()),
        }?;
        lease.certain().await?;
        Ok(round)
    }
}

impl UntilComplete {
    async fn complete_round(&self, entry: &QueueEntry) -> Result<CompleteRound> {
        let ready = ready_key(&entry.keys.prefix);
        let mut updates = ReadThenWatch::key(entry.client().clone(), ready);
        loop {
            // Watched before the keys are read: a round that is complete after the read is not missed.
            let update = updates.next().await?;
            let found = match &update {
                KeysUpdate::Snapshot(found) => found.first(),
                KeysUpdate::Events(events) => {
                    let last_put = events.last().filter(|event| event.is_put());
                    last_put.and_then(|event| event.kv.as_ref())
                }
            };
            let ready = found.map(CompleteRound::from_ready_key);
            match ready.and_then(|round| Some((round, round.includes(entry.ownership.token())?))) {
                Some((round, true)) => return Ok(round),
                Some((_, false)) => return Err(full()),
                // Only a snapshot can be older than the last read of the participants.
                None if matches!(update, KeysUpdate::Events(_)) => {}
                None => {
                    if let Some(round) = self.join_round(entry).await? {
                        return Ok(round);
                    }
                }
            }
        }
    }

    /// Completes the round if all have entered. Returns `None` if others are missing.
    async fn join_round(&self, entry: &QueueEntry) -> Result<Option<CompleteRound>> {
        loop {
            let step = match self.read_round(entry).await {
                Ok((RoundState::Waiting, _)) => return Ok(None),
                Ok((RoundState::Complete(round), _)) => return Ok(Some(round)),
                Ok((RoundState::Full, _)) => return Err(full()),
                Ok((RoundState::AllEntered { last }, ready)) => complete(entry, last, ready).await,
                Err(error) => Err(error),
            };
            match step {
                Ok(()) => {}
                Err(error) if is_temporary(&error) => tokio::time::sleep(RETRY_DELAY).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the state of the round, and the mod revision of the ready key, or 0.
    async fn read_round(&self, entry: &QueueEntry) -> Result<(RoundState, i64)> {
        let all = get(entry.keys.own()).prefix().keys_only();
        let ready = get(ready_key(&entry.keys.prefix));
        let read = entry.ownership.txn();
        let read = read.then([all.sort_by_create_revision(), ready]);
        let response = read.await?;
        let (Some(OpResponse::Get(all)), Some(OpResponse::Get(ready))) =
            (response.responses.first(), response.responses.get(1))
        else {
            // The key of this participant is gone.
            return Err(entry.why_key_gone().await.into());
        };
        let keys: Vec<_> = all.kvs.iter().map(|kv| kv.create_revision).collect();
        let ready = ready.first().map(CompleteRound::from_ready_key);
        let token = entry.ownership.token();
        let state = round_state(token, self.participants, ready, &keys);
        Ok((state, ready.map_or(0, |round| round.ready_revision)))
    }
}

/// Puts the ready key, unless it was changed since it was read, or this participant has left: a request that arrives late
/// does not complete a later round.
async fn complete(entry: &QueueEntry, last: i64, ready_revision: i64) -> Result<()> {
    let ready = ready_key(&entry.keys.prefix);
    let unchanged = Compare::mod_revision(ready.clone()).eq(ready_revision);
    let completed = entry.ownership.txn().when([unchanged]);
    completed.then([put(ready, last.to_string())]).await?;
    Ok(())
}

fn full() -> Error {
    let reason = "enough others take part in the round that has not ended yet";
    Error::new(ErrorKind::BarrierFull, Outcome::Rejected, reason)
}
