//! Messages that the hub receives.

use std::sync::Arc;

use actix::{Addr, Message, Recipient};
use tokio::sync::oneshot;

use crate::{
    connection::EndpointId,
    error::Error,
    proto::Event,
    runtime::delivery::SendOnDrop,
    watch::{
        Watch, WatchEvent,
        engine::{
            cursor::Cursor,
            event_buffer::EventBuffer,
            freshness_record::{FreshnessRecord, LegFreshness},
            known_keys::KnownKeys,
            watch_actor::{SecondLeg, WatchActor},
            watch_spec::WatchSpec,
            watch_stream::AddWatch,
        },
    },
};

/// Start the actor of a new watch.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StartWatch {
    pub(crate) spec: Arc<WatchSpec>,
    /// Keys of the range before the watch; `Some` if the watch resyncs after a compaction.
    pub(crate) known_keys: Option<KnownKeys>,
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) freshness: Arc<FreshnessRecord>,
    /// Receives the watch's id and the actor's address.
    pub(crate) started: oneshot::Sender<(u64, Addr<WatchActor>)>,
    /// Receives `Ok` when the server has created the watch for the first time, or the reason why the watch ended
    /// before.
    pub(crate) opened: oneshot::Sender<Result<(), Error>>,
}

/// Start the actor of the second leg of a hedged watch, unless it runs. Sent by the first leg.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StartSecondLeg {
    pub(crate) spec: Arc<WatchSpec>,
    pub(crate) cursor: Cursor<Event>,
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) freshness: LegFreshness,
    pub(crate) leg: SecondLeg,
}

/// Place a watch on a stream. The watch leaves the stream it had. Sent by the watch.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AttachWatch {
    /// Message to the stream that the hub chooses.
    pub(crate) add: AddWatch,
    /// Member whose stream just failed: used only if no other member is usable.
    pub(crate) avoid: Option<EndpointId>,
    /// Other leg of a hedged watch. While it is on a stream, its member is not used for this leg.
    pub(crate) apart_from: Option<u64>,
}

impl AttachWatch {
    pub(super) fn require_leader(&self) -> bool {
        self.add.spec.options.require_leader
    }
}

/// Remove a watch from its stream. Sent by the watch.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct DetachWatch {
    pub(crate) watch: u64,
    /// Whether the watch has ended and will not attach again.
    pub(crate) ended: bool,
}

/// Request the progress of a watch from the server. Sent by the watch.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RequestWatchProgress {
    pub(crate) watch: u64,
    /// Whether the watch waits for the response.
    pub(crate) notify: bool,
}

/// Deliver the events of a watch to an actor on the hub's thread.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct DeliverWatch {
    pub(crate) watch: Watch,
    pub(crate) recipient: Recipient<WatchEvent>,
    /// Sends the last item if the hub has stopped.
    pub(crate) if_shut_down: SendOnDrop<WatchEvent>,
}

/// The member responded to the first create of a stream, or created its first watch. Sent by the stream.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CreateResponseReceived {
    pub(crate) endpoint: EndpointId,
    /// Whether the member ignores the watch ids of this client; `None` if that is not known yet.
    pub(crate) server_chooses_ids: Option<bool>,
}

/// A stream ended and accepts no more watches. Sent by the stream.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct WatchStreamEnded {
    pub(crate) stream: u64,
    pub(crate) endpoint: EndpointId,
    pub(crate) generation: u64,
    pub(crate) reason: StreamEndReason,
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEndReason {
    /// The last watch left.
    Unused,
    /// The connection died.
    ConnectionDied,
    /// The stream failed before the member responded to any create.
    NoCreateResponse,
    /// The stream failed after the member had responded to a create.
    Failed,
}

/// End every watch and stream, and stop: the client shuts down. Sent by the client.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct HubShutdown;

/// Retry to place the queued watches. Sent by the hub to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RetryPlacement {
    /// Whether members without a leader are accepted.
    pub(super) leaderless: bool,
}

/// Retry to place the legs of hedged watches that wait for a second member. Sent by the hub to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct RetryWaitingLegs;

/// Make the actor of every stream panic at the next response.
#[cfg(feature = "test-faults")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashStreams;
