//! Messages that a stream's actor receives.

use std::sync::Arc;

use actix::{Addr, Message};

use crate::{
    error::Error,
    proto::WatchResponse,
    watch::engine::{
        event_buffer::EventBuffer, freshness_record::LegFreshness, watch_actor::WatchActor,
        watch_spec::WatchSpec,
    },
};

/// Create a watch on this stream. Sent by the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AddWatch {
    pub(crate) watch: u64,
    pub(crate) attempt: u32,
    pub(crate) address: Addr<WatchActor>,
    pub(crate) spec: Arc<WatchSpec>,
    pub(crate) next_revision: i64,
    pub(crate) sharing: StreamSharing,
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) freshness: LegFreshness,
}

/// Whether a watch may share its stream with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamSharing {
    /// It may. The stream returns it if it starts in the future and delays the progress of the others.
    Shared,
    /// It starts in the future. etcd responds to no progress request on its stream until then, so it has a stream of
    /// its own where the connection allows one.
    Alone,
}

/// Cancel a watch on the server. Sent by the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RemoveWatch {
    pub(crate) watch: u64,
}

/// Request the progress of all watches of the stream from the server. Sent by the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SendProgressRequest {
    /// Watch that waits for the response, if one does.
    pub(crate) notify: Option<u64>,
}

/// Stop the actor: the hub sends no more watches.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CloseStream;

/// Responses arrived, in order. Returns the buffers that may be nearly full now. Sent by the reader task.
#[derive(Message)]
#[rtype(result = "Vec<Arc<EventBuffer>>")]
pub(super) struct ResponsesReceived {
    pub(super) responses: Vec<WatchResponse>,
    /// Length of the encoded responses.
    pub(super) bytes: usize,
}

/// No more responses will arrive. Sent by the reader task.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ReadFailed {
    pub(super) error: Error,
    /// Id of the watch whose response exceeded the size limit.
    pub(super) too_large_for: Option<i64>,
}

impl From<Error> for ReadFailed {
    fn from(error: Error) -> Self {
        Self {
            error,
            too_large_for: None,
        }
    }
}

/// Send the collected requests. Sent by the actor to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct FlushRequests;

/// Check whether creates are overdue. Sent by the actor to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CheckCreates;

/// An interval between two progress requests has passed. Sent by the actor to itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ProgressRequestDue;

/// Panic at the next [`ResponsesReceived`], which is lost.
#[cfg(feature = "test-faults")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashOnNextResponse;
