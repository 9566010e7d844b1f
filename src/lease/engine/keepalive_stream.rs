//! A keepalive stream, one per connection, and the keepalives in flight on it.
//!
//! A member handles the keepalives of a stream one by one. A keepalive that hangs blocks all later ones: a silent stream
//! is dropped as a whole.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Handler, Message, WeakAddr};
use tokio::sync::watch;

use super::{
    in_flight_keepalives::{InFlightKeepAlive, InFlightKeepAlives},
    keeper::{KeepAliveResponsesReceived, KeepAliveStreamEnded, KeeperActor},
    kept_leases::QueuedKeepAlive,
};
use crate::{
    connection::{Connection, EndpointId, MemberHealth, StreamRegistration, token::Token},
    error::Error,
    proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse, rpc},
    runtime::abort_on_drop::AbortOnDrop,
    transport::channel::{Metadata, StreamReceiver, StreamSender},
};

/// A stream that was not used for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// A stream with a keepalive that got no response for this long is replaced, so that the keepalives in flight stay few.
const MAX_RESPONSE_AGE: Duration = Duration::from_secs(60);
/// Maximum number of responses in one message to the keeper.
const MAX_BATCH: usize = 512;

/// One keepalive stream.
pub(crate) struct KeepAliveStream {
    /// Stream number. Messages about older streams are ignored.
    pub(crate) number: u64,
    pub(crate) connection: Arc<Connection>,
    /// Token with which the stream was opened.
    pub(crate) token: Token,
    sender: StreamSender<LeaseKeepAliveRequest>,
    batch: Vec<LeaseKeepAliveRequest>,
    in_flight: InFlightKeepAlives,
    last_response: Instant,
    last_use: Instant,
    _reader: AbortOnDrop,
    _registration: StreamRegistration,
}

impl KeepAliveStream {
    pub(crate) fn open(
        number: u64,
        connection: &Arc<Connection>,
        token: Token,
        keeper: WeakAddr<KeeperActor>,
        now: Instant,
    ) -> Result<Self, Error> {
        let metadata = Metadata {
            require_leader: true,
            token: token.value.clone(),
            timeout: None,
        };
        let (sender, receiver) = connection
            .channel
            .stream(rpc::LEASE_KEEP_ALIVE.path, &metadata)?;
        let health = connection.watch_health();
        Ok(Self {
            number,
            connection: connection.clone(),
            token,
            sender,
            batch: Vec::new(),
            in_flight: InFlightKeepAlives::default(),
            last_response: now,
            last_use: now,
            _reader: AbortOnDrop::spawn(read(number, receiver, health, keeper)),
            _registration: connection.register_stream(),
        })
    }

    pub(crate) fn is_on(&self, connection: &Connection) -> bool {
        self.connection.id == connection.id && self.connection.generation == connection.generation
    }

    pub(crate) fn endpoint(&self) -> EndpointId {
        self.connection.id
    }

    /// Adds a keepalive to the next batch.
    pub(crate) fn add(&mut self, keepalive: &QueuedKeepAlive, now: Instant) {
        self.batch.push(LeaseKeepAliveRequest {
            id: keepalive.lease,
        });
        self.in_flight.push(InFlightKeepAlive {
            lease: keepalive.lease,
            slot: keepalive.slot,
            sent_at: now,
        });
        self.last_use = now;
    }

    /// Sends the batch.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let sent = self.sender.send_all(&self.batch);
        self.batch.clear();
        sent
    }

    /// Removes and returns the keepalive that a response for this lease belongs to.
    pub(crate) fn match_response(&mut self, lease: i64, now: Instant) -> Option<InFlightKeepAlive> {
        self.last_response = now;
        self.in_flight.take(lease)
    }

    /// Returns the keepalives without a response, oldest first.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &InFlightKeepAlive> {
        self.in_flight.iter()
    }

    /// Returns whether a keepalive was in flight for `response_timeout` while no response was received.
    pub(crate) fn is_silent(&self, response_timeout: Duration, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= response_timeout;
        let oldest = self.in_flight.oldest();
        oldest.is_some_and(|keepalive| is_over(keepalive.sent_at)) && is_over(self.last_response)
    }

    /// Returns whether a keepalive was in flight for so long that it will not get a response.
    pub(crate) fn has_abandoned(&self, now: Instant) -> bool {
        let oldest = self.in_flight.oldest();
        oldest
            .is_some_and(|oldest| now.saturating_duration_since(oldest.sent_at) >= MAX_RESPONSE_AGE)
    }

    /// Returns when the stream is closed unless it is used before. Its keepalives have timed out long before.
    pub(crate) fn idle_at(&self) -> Instant {
        self.last_use + IDLE_TIMEOUT
    }

    pub(crate) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Closes the stream gracefully.
    pub(crate) fn finish(self) {
        self.sender.finish();
    }

    /// Resets the stream and returns the keepalives without a response.
    pub(crate) fn reset(self) -> VecDeque<InFlightKeepAlive> {
        self.in_flight.into_remaining()
    }
}

/// Reads a stream until it ends or its connection becomes unhealthy.
async fn read(
    stream: u64,
    mut receiver: StreamReceiver<LeaseKeepAliveResponse>,
    mut health: watch::Receiver<MemberHealth>,
    keeper: WeakAddr<KeeperActor>,
) {
    let error = loop {
        let first = tokio::select! {
            biased;
            response = receiver.next() => response,
            () = unhealthy(&mut health) => break None,
        };
        let mut responses = Vec::new();
        let mut next = first;
        let end = loop {
            match next {
                Ok(Some(response)) => responses.push((response.id, response.ttl)),
                Ok(None) => break Some(None),
                Err(failure) => break Some(Some(failure.error)),
            }
            if responses.len() >= MAX_BATCH {
                break None;
            }
            // Adds the responses that have arrived already.
            next = tokio::select! {
                biased;
                response = receiver.next() => response,
                () = std::future::ready(()) => break None,
            };
        };
        let message = KeepAliveResponsesReceived { stream, responses };
        if !message.responses.is_empty() && !notify(&keeper, message) {
            return;
        }
        if let Some(error) = end {
            break error;
        }
    };
    notify(&keeper, KeepAliveStreamEnded { stream, error });
}

async fn unhealthy(health: &mut watch::Receiver<MemberHealth>) {
    // The stream owns its connection, which owns the sender: the channel does not close before.
    let _ = health.wait_for(|health| !health.verdict.is_fine()).await;
}

/// Returns `false` if the keeper has stopped.
fn notify<M>(keeper: &WeakAddr<KeeperActor>, message: M) -> bool
where
    M: Message + Send + 'static,
    M::Result: Send,
    KeeperActor: Handler<M>,
{
    let keeper = keeper.upgrade();
    if let Some(keeper) = &keeper {
        keeper.do_send(message);
    }
    keeper.is_some()
}
