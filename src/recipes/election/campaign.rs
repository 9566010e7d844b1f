//! A campaign for the leadership.

use std::{fmt, future::IntoFuture};

use actix::{Message, Recipient};
use bytes::Bytes;

use super::{ClaimHandle, Leadership, Ownership, OwnershipLost};
use crate::{
    error::{Error, Result},
    recipes::lock_queue::{ClaimEvent, LockQueue, claim},
    request::ResponseFuture,
};

/// A campaign, made by [`Election::campaign`](super::Election::campaign). Awaiting it waits until the candidate leads
/// and returns a [`Leadership`]; [`deliver_to`](Self::deliver_to) campaigns on behalf of an actor.
///
/// Dropping the future withdraws the candidate. The campaign continues through outages for as long as the session
/// lives. It fails with [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) as soon as the session is lost, with
/// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the candidate's key is deleted, and with
/// [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) if the user may not read and write the keys. A
/// failed campaign leaves no key behind.
#[derive(Clone)]
#[must_use = "the campaign starts when this is awaited or delivered to an actor"]
pub struct Campaign {
    queue: LockQueue,
    value: Bytes,
}

impl Campaign {
    pub(super) fn new(queue: LockQueue, value: Bytes) -> Self {
        Self { queue, value }
    }

    /// Campaigns on behalf of an actor. The actor receives [`CandidateEvent::Elected`] when it leads, and one last
    /// event when the campaign or the leadership has ended. The leadership is resigned when the claim is dropped or the
    /// actor stops.
    pub fn deliver_to(self, recipient: Recipient<CandidateEvent>) -> ClaimHandle {
        let value = self.value.clone();
        let acquire = move |entry| Leadership::won(entry, value);
        claim(self.queue, self.value, acquire, recipient)
    }

    async fn campaign(self) -> Result<Leadership> {
        let entry = self.queue.join(self.value.clone()).await?;
        entry.wait_until_first().await?;
        Leadership::won(entry, self.value).await
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership>;
    type IntoFuture = ResponseFuture<Leadership>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.campaign())
    }
}

impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaign")
            .field("prefix", &self.queue.prefix)
            .finish_non_exhaustive()
    }
}

/// An event of a campaign, sent to the actor that is the candidate.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum CandidateEvent {
    /// The actor leads.
    Elected(Ownership),
    /// The actor no longer leads, or may no longer lead. This is the last event.
    Lost(OwnershipLost),
    /// The actor has resigned or was withdrawn. This is the last event.
    Resigned,
    /// The campaign failed. This is the last event.
    Failed(Error),
}

impl From<ClaimEvent> for CandidateEvent {
    fn from(event: ClaimEvent) -> Self {
        match event {
            ClaimEvent::Acquired(ownership) => Self::Elected(ownership),
            ClaimEvent::Lost(loss) => Self::Lost(loss),
            ClaimEvent::Released => Self::Resigned,
            ClaimEvent::Failed(error) => Self::Failed(error),
        }
    }
}
