//! The receiving side of a stream: answers as they come, and every reason to expect no more of them.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use actix::WeakAddr;

use super::{Broken, Received, StreamActor};
use crate::{
    connection::{Connection, Verdict},
    error::{Error, ErrorKind, Outcome},
    proto::WatchResponse,
    transport::channel::StreamReceiver,
};

/// How many answers are handed on in one message, if so many are there already.
const AT_ONCE: usize = 64;
/// No more than fit into what a queue of the usual size still has free when its stream waits for it.
const EVENTS_AT_ONCE: usize = 1024;

/// The task that reads; it ends with this.
pub(super) struct Reader(tokio::task::JoinHandle<()>);

impl Reader {
    pub(super) fn start(
        receiver: StreamReceiver<WatchResponse>,
        actor: WeakAddr<StreamActor>,
        connection: Arc<Connection>,
        leader_wanted: bool,
    ) -> Self {
        Self(actix_rt::spawn(async move {
            let error = tokio::select! {
                biased;
                error = read(receiver, &actor, &connection) => error,
                error = unfit(&connection, leader_wanted) => Some(error),
            };
            if let (Some(error), Some(actor)) = (error, actor.upgrade()) {
                actor.do_send(Broken(error));
            }
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads answers and hands them over; the next ones are read when the last have been handled. Gives why it
/// ended, unless the actor is the reason.
async fn read(
    mut receiver: StreamReceiver<WatchResponse>,
    actor: &WeakAddr<StreamActor>,
    connection: &Connection,
) -> Option<Error> {
    loop {
        let mut ended = None;
        let mut responses = Vec::new();
        match receiver.next().await {
            Ok(Some(response)) => responses.push(response),
            other => ended = Some(why(other, connection)),
        }
        let full = |responses: &[WatchResponse]| {
            responses.len() == AT_ONCE
                || responses.iter().map(|r| r.events.len()).sum::<usize>() >= EVENTS_AT_ONCE
        };
        while ended.is_none() && !full(&responses) {
            let next = poll_fn(|cx| match pin!(receiver.next()).poll(cx) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                Poll::Pending => Poll::Ready(None),
            });
            match next.await {
                None => break,
                Some(Ok(Some(response))) => responses.push(response),
                Some(other) => ended = Some(why(other, connection)),
            }
        }
        if !responses.is_empty() {
            for queue in actor.upgrade()?.send(Received(responses)).await.ok()? {
                queue.relieved().await;
            }
        }
        if ended.is_some() {
            return ended;
        }
    }
}

fn why(
    end: Result<Option<WatchResponse>, crate::transport::grpc::Failure>,
    connection: &Connection,
) -> Error {
    match end {
        Err(failure) => failure.error,
        Ok(_) => {
            protocol("the member ended the watch stream").with_endpoint(connection.endpoint.name())
        }
    }
}

pub(super) fn protocol(text: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, Outcome::Unknown, text)
}

/// Resolves when the member should not carry streams any more.
async fn unfit(connection: &Connection, leader_wanted: bool) -> Error {
    let mut health = connection.watch_health();
    loop {
        let verdict = health.borrow_and_update().verdict;
        let kind = match verdict {
            Verdict::Fine => None,
            Verdict::NoLeader | Verdict::CutOff => leader_wanted.then_some(ErrorKind::NoLeader),
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
