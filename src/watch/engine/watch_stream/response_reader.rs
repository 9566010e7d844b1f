//! The receiving half of a stream: reads responses and detects every reason to expect no more of them.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use actix::WeakAddr;
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    StreamActor, event_decoder, messages::ReadFailed, protocol_error, response_batch::ResponseBatch,
};
use crate::{
    connection::{Connection, Verdict},
    error::{Error, ErrorKind, Outcome},
    proto::WatchResponse,
    runtime::abort_on_drop::AbortOnDrop,
    transport::{channel::StreamReceiver, grpc::RpcFailure},
};

/// Spawns the task that reads the stream and sends [`ResponsesReceived`], and [`ReadFailed`] at its end.
pub(super) fn spawn(
    receiver: StreamReceiver<WatchResponse>,
    actor: WeakAddr<StreamActor>,
    connection: Arc<Connection>,
    leader_required: bool,
) -> AbortOnDrop {
    AbortOnDrop::spawn(async move {
        let failed = tokio::select! {
            biased;
            failed = read(receiver, &actor, &connection) => failed,
            error = member_unfit(&connection, leader_required) => Some(error.into()),
        };
        if let (Some(failed), Some(actor)) = (failed, actor.upgrade()) {
            actor.do_send(failed);
        }
    })
}

/// Reads batches of responses; reads the next batch when the actor has handled the last one. Returns why it ended, or
/// `None` if the actor has ended.
async fn read(
    mut receiver: StreamReceiver<WatchResponse>,
    actor: &WeakAddr<StreamActor>,
    connection: &Connection,
) -> Option<ReadFailed> {
    let mut batch = ResponseBatch::default();
    loop {
        let first = receiver.next_encoded().await;
        let mut failed = add_message(&mut batch, first, &mut receiver, false, connection);
        while failed.is_none() {
            let joinable = join_arrived(&mut batch, &mut receiver);
            if batch.is_full() {
                break;
            }
            let next = poll_fn(|cx| match pin!(receiver.next_encoded()).poll(cx) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                Poll::Pending => Poll::Ready(None),
            });
            let Some(next) = next.await else { break };
            failed = add_message(&mut batch, next, &mut receiver, joinable, connection);
        }
        let (collected, next_batch) = batch.finish();
        batch = next_batch;
        if !collected.responses.is_empty() {
            let handled = actor.upgrade()?.send(collected);
            let nearly_full = handled.await.ok()?;
            // The consumers read at the same time, so one time limit holds for all of them.
            let since = Instant::now();
            for buffer in nearly_full {
                buffer.wait_for_room(since).await;
            }
        }
        if failed.is_some() {
            return failed;
        }
    }
}

/// Joins the messages that have arrived already to the last response of the batch. Returns whether the next message
/// may be joined as well.
fn join_arrived(batch: &mut ResponseBatch, receiver: &mut StreamReceiver<WatchResponse>) -> bool {
    while !batch.is_full() {
        let Some((frame, message)) = receiver.peek() else {
            return true;
        };
        let end = message.end;
        if !batch.join(frame, message) {
            return false;
        }
        receiver.consume(end);
    }
    true
}

/// Adds what was read to the batch. Returns why no more can be read, if that is so.
fn add_message(
    batch: &mut ResponseBatch,
    read: Result<Option<Bytes>, RpcFailure>,
    receiver: &mut StreamReceiver<WatchResponse>,
    joinable: bool,
    connection: &Connection,
) -> Option<ReadFailed> {
    let message = match read {
        Ok(Some(message)) => message,
        Ok(None) => {
            let ended = protocol_error("the member closed the watch stream", connection);
            return Some(ended.into());
        }
        Err(RpcFailure { error, .. }) => {
            let too_large = error.kind() == ErrorKind::ResponseTooLarge;
            return Some(ReadFailed {
                error,
                too_large_for: too_large
                    .then(|| event_decoder::decode_watch_id(receiver.oversized_start()))
                    .flatten(),
            });
        }
    };
    if joinable && batch.join(&message, 0..message.len()) || batch.add_events(&message) {
        return None;
    }
    let length = message.len();
    match receiver.decode(message) {
        Ok(response) => batch.add(response, length),
        Err(failure) => return Some(failure.error.into()),
    }
    None
}

/// Waits until the member is no longer fit to carry watch streams, and returns why.
async fn member_unfit(connection: &Connection, leader_required: bool) -> Error {
    let mut health = connection.watch_health();
    loop {
        let verdict = health.borrow_and_update().verdict;
        let kind = match verdict {
            // Suspicion alone does not move a stream: the connection is replaced if it is justified.
            Verdict::Fine | Verdict::Late | Verdict::Unreachable => None,
            Verdict::NoLeader | Verdict::CutOff | Verdict::Returning => {
                leader_required.then_some(ErrorKind::NoLeader)
            }
            Verdict::Learner => Some(ErrorKind::NotSupportedForLearner),
            Verdict::NotServing => Some(ErrorKind::Unhealthy),
            Verdict::Unresponsive => Some(ErrorKind::MemberUnresponsive),
            Verdict::Closed => Some(ErrorKind::ConnectionLost),
        };
        if let Some(kind) = kind {
            return Error::new(kind, Outcome::Unknown, verdict.reason())
                .with_endpoint(connection.endpoint.name());
        }
        if health.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
