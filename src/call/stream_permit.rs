//! Permits for requests to a member that limits the streams of a connection.
//!
//! A request that waits for a permit was not sent. So even a write can wait at several members at the same time, and is
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
};

/// A stream of a connection that is reserved for one request.
pub(super) struct StreamPermit(Option<Arc<Connection>>);

impl StreamPermit {
    /// Returns a permit if the connection has a free stream.
    pub(super) fn try_acquire(connection: &Arc<Connection>) -> Option<Self> {
        let Some(permits) = connection.channel.stream_permits() else {
            return Some(Self(None));
        };
        let permit = permits.try_acquire().ok()?;
        permit.forget();
        Some(Self(Some(connection.clone())))
    }

    /// Waits until the connection has a free stream.
    async fn acquire(connection: Arc<Connection>) -> Self {
        let Some(permits) = connection.channel.stream_permits() else {
            return Self(None);
        };
        // The semaphore is never closed; an error would mean that there is no limit.
        let Ok(permit) = permits.acquire().await else {
            return Self(None);
        };
        permit.forget();
        Self(Some(connection))
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let connection = self.0.take();
        let permits = connection
            .as_ref()
            .and_then(|it| it.channel.stream_permits());
        if let Some(permits) = permits {
            permits.add_permits(1);
        }
    }
}

/// A connection that has no free stream, and the permit that a request waits for.
struct Waiting {
    connection: Arc<Connection>,
    permit: Pin<Box<dyn Future<Output = StreamPermit> + Send>>,
}

impl Waiting {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            permit: Box::pin(StreamPermit::acquire(connection.clone())),
            connection,
        }
    }
}

impl Caller {
    /// Waits until this connection, or that of another ready member, has a free stream. Fails at the deadline.
    pub(super) async fn wait_for_stream(
        &self,
        connection: Arc<Connection>,
        deadline: Instant,
    ) -> Result<(Arc<Connection>, StreamPermit), Error> {
        let endpoint = connection.endpoint.name().clone();
        let mut waiting = vec![Waiting::new(connection)];
        loop {
            let now = Instant::now();
            if now >= deadline {
                let reason = "the member allows no more concurrent requests";
                let (kind, outcome) = (ErrorKind::DeadlineExceeded, Outcome::NotSent);
                return Err(Error::new(kind, outcome, reason).with_endpoint(endpoint));
            }
            // Members that became ready in the meantime take part, too.
            let is_new = |other: &Arc<Connection>| {
                let known = |waiting: &Waiting| Arc::ptr_eq(&waiting.connection, other);
                !waiting.iter().any(known)
            };
            let new = self.other_members(is_new);
            waiting.extend(new.into_iter().map(Waiting::new));
            let recheck_at = deadline.min(now + RECHECK_AFTER);
            if let Ok(acquired) = timeout_at(recheck_at, first_permit(&mut waiting)).await {
                return Ok(acquired);
            }
        }
    }
}

/// Waits for the first permit.
fn first_permit(waiting: &mut [Waiting]) -> impl Future<Output = (Arc<Connection>, StreamPermit)> {
    poll_fn(move |context: &mut Context<'_>| {
        for waiting in &mut *waiting {
            if let Poll::Ready(permit) = waiting.permit.as_mut().poll(context) {
                return Poll::Ready((waiting.connection.clone(), permit));
            }
        }
        Poll::Pending
    })
}
