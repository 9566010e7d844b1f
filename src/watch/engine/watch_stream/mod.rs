//! One Watch stream on one connection, shared by many watches.
//!
//! **States.** `Open`: the stream carries watches. `Ended`: the connection broke, the member failed, or the last watch
//! left; the actor sends `StreamFailed` to every watch that the hub still adds, until [`CloseStream`] stops it. A
//! stream ends once and is never reopened: the hub opens a new one. After a panic of its actor the stream ends.
//!
//! **Receives** [`AddWatch`], [`RemoveWatch`], [`SendProgressRequest`] and [`CloseStream`] from the hub, and
//! `ResponsesReceived` and `ReadFailed` from its own reader task.
//!
//! **Sends** [`StreamUpdate`](super::watch_actor::StreamUpdate)s to watches, and
//! [`CreateResponseReceived`](super::hub::CreateResponseReceived) and
//! [`WatchStreamEnded`](super::hub::WatchStreamEnded) to the hub. The hub receives `WatchStreamEnded` before any watch
//! of the stream requests a new one.
//!
//! Decisions: [`create_pairing`] (which watch a response belongs to), [`create_timeout`] (when creates are overdue),
//! [`progress_log`] (up to which revision a watch is complete),
//! [`response_batch`] and [`event_decoder`] (fast decoding of events).

mod actor;
mod bookmarks;
mod create_pairing;
mod create_timeout;
mod event_decoder;
mod handlers;
mod messages;
mod progress_log;
mod response_batch;
mod response_reader;
mod response_routing;
mod watch_count;

pub(crate) use actor::StreamActor;
#[cfg(feature = "test-faults")]
pub(crate) use messages::CrashOnNextResponse;
pub(crate) use messages::{AddWatch, CloseStream, RemoveWatch, SendProgressRequest, StreamSharing};
#[cfg(test)]
pub(crate) use progress_log::ProgressLog;
pub(crate) use progress_log::ProgressResponse;
pub(crate) use watch_count::WatchCount;

use crate::{
    connection::Connection,
    error::{Error, ErrorKind, Outcome},
};

/// Most watches on a stream whose server chooses the watch ids itself, as proxies do. Their creates are sent one at a
/// time, so many watches are created faster on several streams.
pub(crate) const SEQUENTIAL_WATCHES_PER_STREAM: usize = 32;

/// Creates the error for a member that violates the Watch protocol. No write is involved, so none was sent.
fn protocol_error(reason: &'static str, connection: &Connection) -> Error {
    Error::new(ErrorKind::Protocol, Outcome::NotSent, reason)
        .with_endpoint(connection.endpoint.name())
}
