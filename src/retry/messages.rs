//! Messages of the [`RetryActor`](super::actor::RetryActor).

use actix::Message;
use tokio::{sync::oneshot, time::Instant};

/// Requests a ticket, which is sent when the next attempt is due.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ScheduleRetry {
    /// End of the backoff.
    pub(crate) due: Instant,
    /// Earliest time that the retry budget allows, even if a member becomes ready before.
    pub(crate) not_before: Instant,
    pub(crate) ticket: oneshot::Sender<()>,
}

/// A member became ready: waiting calls need not wait for the end of their backoff.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct MemberReady;
