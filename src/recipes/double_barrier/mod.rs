//! A double barrier: participants begin together, when all have entered, and end together, when all have left.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let barrier = etcd.double_barrier("step", 3).await?;
//! let inside = barrier.enter().await?; // returns when three participants have entered
//! // … work …
//! inside.leave().await?; // returns when all three have left
//! # Ok(())
//! # }
//! ```
//!
//! An actor takes part by messages: `barrier.enter().deliver_to(recipient)` sends it [`ParticipantEvent`]s, and releasing
//! the [`ClaimHandle`] leaves the barrier.
//!
//! # Rounds
//! The barrier can be used again and again. A round begins with the first participant that enters and is complete when
//! as many participants as required are inside at the same time. It ends when all of them have left.
//! - A participant that dies before its round is complete does not count: its key is deleted with its lease, and the
//!   others wait for another one. One that dies inside, or loses its session, has left.
//! - A participant that dies at the moment at which it completes the round may or may not count.
//! - A participant that is late, because its round is complete and has not ended yet, or that is one too many, does not
//!   wait: [`DoubleBarrier::enter`] fails with [`ErrorKind::BarrierFull`](crate::ErrorKind::BarrierFull).
//! - Dropping a [`Participation`] leaves without waiting for the others.
//!
//! Each participant reads the keys of all others once when it enters, and then watches the ready key and its own. While it
//! waits for the others to leave, it watches one of their keys at a time.
//!
//! # Keys
//! `<name>/waiters/<claim>` for each participant, bound to the lease of its session, and `<name>/ready`, which the
//! participant puts that completes the round, as in the Go client's recipe `DoubleBarrier`: Go programs can take part. The
//! value of `<name>/ready` is the create revision of the last key of the round, so that everybody agrees who takes part;
//! a Go program puts an empty value, and then all that entered before it take part.
//!
//! `<name>/ready` is bound to no lease: a participant that was cut off from etcd must find it later. The last participant
//! that [leaves](Participation::leave) deletes it. If none leaves in that way, the key stays until the end of a later
//! round, which it does not affect.

mod enter;
mod leave;
mod round;

use std::{fmt, future::IntoFuture, time::Duration};

use bytes::Bytes;

pub use super::mutex::{ClaimHandle, Ownership, OwnershipLost};
pub use enter::{EnterBarrier, ParticipantEvent};
pub use leave::Participation;

use super::{
    lock_queue::{LockQueue, QueueBuilder, QueueRule},
    session::Session,
};
use crate::{
    client::Client,
    error::{Error, Result},
    request::{IntoBytes, ResponseFuture},
};

impl Session {
    /// Returns the double barrier with this name and number of participants. It works until the session ends: the
    /// participants of a lost or closed session have left.
    pub fn double_barrier(&self, name: impl IntoBytes, participants: u32) -> DoubleBarrier {
        DoubleBarrier::new(self, name, participants)
    }
}

impl Client {
    /// Opens a double barrier with this number of participants, and with a session of its own.
    ///
    /// The session heals: after an outage that has cost its lease, a participant that waits enters again. The session ends
    /// when the barrier, its clones, its requests and its participations are dropped.
    pub fn double_barrier(&self, name: impl IntoBytes, participants: u32) -> DoubleBarrierBuilder {
        DoubleBarrierBuilder {
            queue: QueueBuilder::new(self, name.into_bytes()),
            participants,
        }
    }
}

/// Opens a [`DoubleBarrier`] with a session of its own when awaited. Made by [`Client::double_barrier`].
///
/// Fails if the lease of the session cannot be granted within the client's `request_timeout`, and with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes, or if
/// the number of participants is zero.
#[derive(Debug, Clone)]
#[must_use = "the barrier is opened when this is awaited"]
pub struct DoubleBarrierBuilder {
    queue: QueueBuilder,
    participants: u32,
}

impl DoubleBarrierBuilder {
    /// Sets the TTL of the lease: how long after a crash of a participant it counts as one that has left. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.queue = self.queue.ttl(ttl);
        self
    }
}

impl IntoFuture for DoubleBarrierBuilder {
    type Output = Result<DoubleBarrier>;
    type IntoFuture = ResponseFuture<DoubleBarrier>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            check_participants(self.participants)?;
            let queue = self.queue.open(QueueRule::Participant).await?;
            Ok(DoubleBarrier {
                queue,
                participants: self.participants,
            })
        })
    }
}

/// A double barrier in the cluster, as one session uses it. Several tasks of a session can take part.
#[derive(Clone)]
pub struct DoubleBarrier {
    queue: LockQueue,
    participants: u32,
}

impl DoubleBarrier {
    /// Returns the double barrier with this name and number of participants, for this session. All participants need the
    /// same number.
    pub fn new(session: &Session, name: impl IntoBytes, participants: u32) -> Self {
        Self {
            queue: LockQueue::new(session, &name.into_bytes(), QueueRule::Participant),
            participants,
        }
    }

    /// Returns the number of participants.
    pub fn participants(&self) -> u32 {
        self.participants
    }

    /// Requests to take part in a round. Await the request to get a [`Participation`] when the round is complete, or call
    /// [`deliver_to`](EnterBarrier::deliver_to) to take part on behalf of an actor.
    pub fn enter(&self) -> EnterBarrier {
        EnterBarrier::new(self.queue.clone(), self.participants)
    }
}

impl fmt::Debug for DoubleBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoubleBarrier")
            .field("prefix", &self.queue.keys.prefix)
            .field("participants", &self.participants)
            .finish_non_exhaustive()
    }
}

fn check_participants(participants: u32) -> Result<()> {
    if participants == 0 {
        return Err(Error::invalid(
            "a double barrier needs at least one participant",
        ));
    }
    Ok(())
}

fn ready_key(prefix: &Bytes) -> Bytes {
    [prefix, &b"ready"[..]].concat().into()
}
