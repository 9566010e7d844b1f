//! Waits for a free stream, where members limit the streams of a connection.
//!
//! A waiting request was not sent. So even a write can wait at several members at the same time, and is
//! sent to the first that has a free stream.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::{Instant, timeout_at};

use super::{Caller, hedge::RECHECK_AFTER};
use crate::{
    connection::Connection,
    error::{Error, ErrorKind, Outcome},
    transport::channel::{StreamSlot, StreamUse},
};

/// A connection that has no free stream, and the slot that a request waits for.
struct Waiting {
    connection: Arc<Connection>,
    slot: Pin<Box<dyn Future<Output = StreamSlot> + Send>>,
}

impl Waiting {
    fn new(connection: Arc<Connection>) -> Self {
        let waiting = connection.clone();
        Self {
            slot: Box::pin(async move { waiting.channel.slot(StreamUse::Call).await }),
            connection,
        }
    }
}

impl Caller {
    /// Waits until this connection, or that of another ready member, has a free stream. Fails at the deadline.
    pub(crate) async fn wait_for_stream(
        &self,
        connection: Arc<Connection>,
        deadline: Instant,
    ) -> Result<(Arc<Connection>, StreamSlot), Error> {
        let endpoint = connection.endpoint.name().clone();
        let mut waiting = vec![Waiting::new(connection)];
        loop {
            let now = Instant::now();
            if now >= deadline {
                let limit = waiting[0].connection.channel.stream_limit().unwrap_or(0);
                let reason = format!(
                    "the connection allows {limit} concurrent streams, and none became free"
                );
                let (kind, outcome) = (ErrorKind::DeadlineExceeded, Outcome::NotSent);
                return Err(Error::new(kind, outcome, reason).with_endpoint(endpoint));
            }
            // Members that became ready in the meantime take part, too.
            let is_new = |other: &Arc<Connection>| {
                let known = |waiting: &Waiting| Arc::ptr_eq(&waiting.connection, other);
                !waiting.iter().any(known) && self.accepts_token(other)
            };
            let new = self.other_members(is_new);
            waiting.extend(new.into_iter().map(Waiting::new));
            let recheck_at = deadline.min(now + RECHECK_AFTER);
            if let Ok(acquired) = timeout_at(recheck_at, first_slot(&mut waiting)).await {
                return Ok(acquired);
            }
        }
    }
}

/// Waits for the first slot.
fn first_slot(waiting: &mut [Waiting]) -> impl Future<Output = (Arc<Connection>, StreamSlot)> {
    poll_fn(move |context: &mut Context<'_>| {
        for waiting in &mut *waiting {
            if let Poll::Ready(slot) = waiting.slot.as_mut().poll(context) {
                return Poll::Ready((waiting.connection.clone(), slot));
            }
        }
        Poll::Pending
    })
}
