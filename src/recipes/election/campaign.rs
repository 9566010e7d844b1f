//! A campaign for the leadership.

use std::{fmt, future::IntoFuture, time::Duration};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    ClaimHandle, Leadership, Ownership, OwnershipLost,
    leader_monitor::{HealthCheck, LeaderStatus},
};
use crate::{
    error::{Error, Result},
    recipes::lock_queue::{ClaimEvent, LockQueue, QueueEntry, claim},
    request::ResponseFuture,
};

/// A campaign, made by [`Election::campaign`](super::Election::campaign). Awaiting it waits until the candidate leads
/// and returns a [`Leadership`]; [`deliver_to`](Self::deliver_to) campaigns on behalf of an actor.
///
/// Dropping the future withdraws the candidate. The campaign continues through outages for as long as the session lives;
/// if the session [heals](crate::recipes::session::SessionBuilder::heal), it continues at the end of the queue after a
/// loss of the lease. A failed campaign leaves no key behind. It fails
/// - with [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) as soon as the session is lost,
/// - with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the candidate's key is deleted,
/// - with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked) if an older key under the election's name was not put
///   by a candidate; the error names the key,
/// - with [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) if the user may not read and write the
///   keys,
/// - with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or consists of slashes.
#[derive(Clone)]
#[must_use = "the campaign starts when this is awaited or delivered to an actor"]
pub struct Campaign {
    queue: LockQueue,
    value: Bytes,
    status: LeaderStatus,
    health: Option<HealthCheck>,
}

impl Campaign {
    pub(super) fn new(queue: LockQueue, value: Bytes, status: LeaderStatus) -> Self {
        Self {
            queue,
            value,
            status,
            health: None,
        }
    }

    /// Leads only while `check` returns `true`, for example while a heartbeat of the application is recent. It is called
    /// at this interval, from the client's thread while the candidate leads, and must not block. A check that panics
    /// counts as `false`. Default: no check.
    ///
    /// A candidate that is not healthy leaves the queue, and joins it again, at its end, when it is healthy. A leader
    /// that is not healthy loses its leadership: [`Ownership::lost`] returns [`OwnershipLost::Unhealthy`]. The key is
    /// deleted when the [`Leadership`] is dropped, at the latest when the lease could have ended.
    pub fn healthy_while(
        mut self,
        interval: Duration,
        check: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.health = Some(HealthCheck::new(interval, check));
        self
    }

    /// Campaigns on behalf of an actor. The actor receives [`CandidateEvent::Elected`] when it leads, and one last
    /// event when the campaign or the leadership has ended. The leadership is resigned when the claim is dropped or the
    /// actor stops.
    pub fn deliver_to(self, recipient: Recipient<CandidateEvent>) -> ClaimHandle {
        let client = self.queue.client.clone();
        let campaign = Self {
            queue: self.queue.for_background(),
            ..self
        };
        let acquire = async move |cancel: &mut oneshot::Receiver<()>| campaign.lead(cancel).await;
        claim(&client, acquire, recipient)
    }

    async fn campaign(self) -> Result<Leadership> {
        let (_not_cancelled, mut cancel) = oneshot::channel();
        let leadership = self.lead(&mut cancel).await?;
        leadership.ok_or_else(|| OwnershipLost::Taken.into())
    }

    /// Returns `None` if the campaign is cancelled.
    async fn lead(self, cancel: &mut oneshot::Receiver<()>) -> Result<Option<Leadership>> {
        let entry = match &self.health {
            None => self.queue.join_and_wait(self.value.clone(), cancel).await?,
            Some(health) => self.wait_while_healthy(health, cancel).await?,
        };
        match entry {
            Some(entry) => Leadership::won(entry, self.value, self.status, self.health)
                .await
                .map(Some),
            None => Ok(None),
        }
    }

    async fn wait_while_healthy(
        &self,
        health: &HealthCheck,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<QueueEntry>> {
        loop {
            tokio::select! {
                _ = &mut *cancel => return Ok(None),
                () = health.healthy() => {}
            }
            tokio::select! {
                entry = self.queue.join_and_wait(self.value.clone(), cancel) => return entry,
                () = health.unhealthy() => {}
            }
        }
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
            .field("prefix", &self.queue.keys.prefix)
            .field("health", &self.health)
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
