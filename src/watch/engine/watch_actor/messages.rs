//! Messages that the actor of a watch receives.

use std::sync::Arc;

use actix::{Addr, Message};
use tokio::{sync::oneshot, time::Instant};

use super::{WatchActor, cancel_reason::ServerCancel, token_renewal::RejectedToken};
use crate::{
    connection::EndpointId,
    error::Error,
    proto::Event,
    watch::{
        Resynced, WatchEnd,
        engine::{cursor::ProgressOrder, known_keys::KnownKeys},
    },
};

/// End the watch. Sent by its consumer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CancelWatch;

/// End the watch, as the client shuts down. Sent by the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct WatchShutdown;

/// The consumer has read half of its buffer. Sent by the consumer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct BufferDrained;

/// The hub panicked and may have lost a message of this watch. Sent by the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct HubRestarted;

/// Request the progress of the watch from the server. Sent by the consumer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RequestProgress {
    /// Receives the revision. `None` repeats the request for all earlier senders.
    pub(crate) reply: Option<oneshot::Sender<i64>>,
}

/// The stream received something for this watch. Sent by the stream.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct UpdateReceived {
    /// Attach attempt of the watch on this stream. Updates for older attempts are ignored.
    pub(crate) attempt: u32,
    pub(crate) update: StreamUpdate,
}

/// An update of a watch, received or caused by its stream.
pub(crate) enum StreamUpdate {
    /// The server created the watch.
    Created { revision: i64, cluster_id: u64 },
    /// Events; `fragment` means that more events of the same response follow.
    Events { events: Vec<Event>, fragment: bool },
    /// The server has sent everything up to this revision.
    Progress { revision: i64, order: ProgressOrder },
    /// The server refused or cancelled the watch.
    Cancelled {
        endpoint: EndpointId,
        cancel: ServerCancel,
        /// Revision up to which the watch is complete, if that is known.
        bookmark: Option<i64>,
    },
    /// A response for the watch was larger than the client accepts.
    ResponseTooLarge(Error),
    /// The stream cannot create the watch soon: request another one.
    StreamFull,
    /// The watch starts in the future: request a stream of its own.
    StartsInFuture,
    /// The stream failed.
    StreamFailed {
        endpoint: EndpointId,
        error: Arc<Error>,
        /// Revision up to which the watch is complete, if that is known.
        bookmark: Option<i64>,
    },
}

/// State or events of the second leg of a hedged watch. Sent by the second leg to the first.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SecondLegUpdate {
    /// Epoch of the second leg. Updates of older epochs are ignored.
    pub(super) epoch: u32,
    pub(super) report: LegReport,
}

/// A report of the second leg of a hedged watch.
pub(super) enum LegReport {
    /// A member with this current revision created the watch.
    Created { revision: i64 },
    /// Complete revisions, in order.
    Events(Vec<Event>),
    /// The member has sent everything up to this revision.
    Progress { revision: i64, order: ProgressOrder },
    /// The leg lost its stream.
    Lost(Arc<Error>),
    /// The leg waits until the consumer has read half of its buffer.
    Paused,
    /// The leg is on no stream any more, or its pause ended.
    Detached,
    /// The leg's position is compacted on its member.
    Compacted,
    /// The leg ended, and the watch with it.
    Ended(WatchEnd),
}

/// The second leg of a hedged watch runs. Sent by the hub to the first leg.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SecondLegStarted {
    pub(crate) watch: u64,
    pub(crate) address: Addr<WatchActor>,
}

/// Attach again at the position of the watch. Sent by the first leg to the second.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RestartLeg {
    pub(super) epoch: u32,
}

/// The delay before the next attach attempt has passed. Sent by the actor to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct AttachDue {
    pub(super) attempt: u32,
    pub(super) avoid: Option<EndpointId>,
}

/// The outage that began at `since` has lasted for `max_outage`. Sent by the outage's timer.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct OutageTimedOut {
    pub(super) since: Instant,
}

/// The attempt to get a token ended. Sent by a task of the actor.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct TokenRenewalEnded {
    pub(super) attempt: u32,
    /// Token that the server rejected; `None` if no stream was opened yet.
    pub(super) rejected: Option<RejectedToken>,
    /// `Ok(false)` if a new token would be the same as the rejected one.
    pub(super) result: Result<bool, Error>,
}

/// The read of the range for a resync ended. Sent by a task of the actor.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RangeReadEnded {
    pub(super) attempt: u32,
    /// Time at which the read began.
    pub(super) began: Instant,
    /// Cursor of the watch with which the range was compared.
    pub(super) next_revision: i64,
    pub(super) result: Result<(Resynced, KnownKeys), Error>,
}

/// Deliver the freshness of the watch. Sent by the actor to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ReportFreshness;

/// The read of the cluster's current revision ended. Sent by a task of the actor.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CurrentRevisionRead {
    pub(super) attempt: u32,
    /// Highest revision that the watch had received before the read.
    pub(super) seen: i64,
    /// Number of reads that failed before this one.
    pub(super) failures: u32,
    pub(super) result: Result<i64, Error>,
}

/// Panic at the next [`UpdateReceived`] or [`SecondLegUpdate`], which is lost.
#[cfg(feature = "test-faults")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashOnNextUpdate;
