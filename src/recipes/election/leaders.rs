//! Observes the leaders of an election.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio_stream::Stream;

use super::{Subscription, candidate_list::CandidateList};
use crate::{
    client::{Client, subscription::subscribe},
    error::{Error, Result},
    layers::read_then_watch::{KeysUpdate, ReadThenWatch},
    proto::KeyValue,
    recipes::lock_queue::check_prefix,
    request::{EtcdRequest, IntoBytes, ResponseFuture},
};

/// The leader of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's key.
    pub key: Bytes,
    /// The value of the leader's campaign or of its last proclamation.
    pub value: Bytes,
    /// The fencing token: the create revision of the key.
    pub token: i64,
    /// The lease of the leader's session.
    pub lease: i64,
    /// The revision at which the value was written.
    pub revision: i64,
}

impl From<&KeyValue> for Leader {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: kv.key.clone(),
            value: kv.value.clone(),
            token: kv.create_revision,
            lease: kv.lease,
            revision: kv.mod_revision,
        }
    }
}

/// A change of the leader of an election.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum LeaderEvent {
    /// This candidate leads, or the leader has a new value.
    Leads(Leader),
    /// No candidate leads. Also reported while the oldest key under the election's name was not put by a candidate.
    NoLeader,
    /// The observation ended with this error. This is the last event.
    Ended(Error),
}

/// The next event, and the observer that continues after it.
type NextLeaderEvent = Pin<Box<dyn Future<Output = (LeaderObserver, LeaderEvent)> + Send>>;

/// All changes of the leader of an election, starting with the current state. A stream that ends after
/// [`LeaderEvent::Ended`]. No request is sent before the stream is first polled.
///
/// No leader is missed, unless the history was compacted during an outage: then the next event is the current state.
#[must_use = "the election is observed while this is read"]
pub struct Leaders {
    client: Client,
    next: Option<NextLeaderEvent>,
}

impl Leaders {
    pub(super) fn new(client: Client, prefix: Bytes) -> Self {
        let observer = LeaderObserver {
            keys: ReadThenWatch::prefix(client.for_background(), prefix.clone()),
            candidates: CandidateList::new(prefix.clone()),
            prefix,
        };
        Self {
            client,
            next: Some(Box::pin(observer.next())),
        }
    }

    /// Returns the next event, or `None` after the last one.
    pub async fn next(&mut self) -> Option<LeaderEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Sends the events to an actor. The next event is sent when the actor has handled the last one. The delivery ends
    /// when the actor stops, the client is shut down, or the subscription is dropped. If the client has already been
    /// shut down, the actor receives [`LeaderEvent::Ended`].
    pub fn deliver_to(self, recipient: Recipient<LeaderEvent>) -> Subscription {
        let client = self.client.clone();
        let if_shut_down = LeaderEvent::Ended(Error::shut_down());
        let events = Self {
            client: client.for_background(),
            next: self.next,
        };
        subscribe(&client, events, recipient, Some(if_shut_down))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<LeaderEvent>> {
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (observer, event) = ready!(next.as_mut().poll(cx));
        let ended = matches!(event, LeaderEvent::Ended(_));
        self.next = (!ended).then(|| -> NextLeaderEvent { Box::pin(observer.next()) });
        Poll::Ready(Some(event))
    }
}

impl Stream for Leaders {
    type Item = LeaderEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LeaderEvent>> {
        self.poll(cx)
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}

struct LeaderObserver {
    prefix: Bytes,
    keys: ReadThenWatch,
    candidates: CandidateList,
}

impl LeaderObserver {
    async fn next(mut self) -> (Self, LeaderEvent) {
        if let Err(error) = check_prefix(&self.prefix) {
            return (self, LeaderEvent::Ended(error));
        }
        loop {
            let event = match self.keys.next().await {
                Ok(KeysUpdate::Snapshot(found)) => self.candidates.replace(&found.kvs),
                Ok(KeysUpdate::Events(events)) => self.candidates.apply(&events),
                Err(error) => Some(LeaderEvent::Ended(error)),
            };
            if let Some(event) = event {
                return (self, event);
            }
        }
    }
}

/// Returns an election to observe. Its `deliver_to` makes a message to the actor [`Etcd`](crate::Etcd).
pub fn leaders(name: impl IntoBytes) -> ObserveLeaders {
    ObserveLeaders(name.into_bytes())
}

/// An election to observe, made by [`leaders`](fn@leaders).
#[derive(Debug, Clone)]
#[must_use = "call `deliver_to` to make a message of it"]
pub struct ObserveLeaders(Bytes);

impl ObserveLeaders {
    /// Returns a message to the actor [`Etcd`](crate::Etcd) that starts sending [`LeaderEvent`]s to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<LeaderEvent>) -> SubscribeLeaders {
        SubscribeLeaders {
            name: self.0,
            recipient,
        }
    }
}

/// A message to the actor [`Etcd`](crate::Etcd) that sends the changes of an election's leader to another actor:
/// `etcd.send(leaders("jobs").deliver_to(recipient))`. The response is a [`Subscription`].
///
/// Sent with `do_send`, the delivery continues until the actor stops or the client is shut down.
#[derive(Clone, Message)]
#[rtype(result = "Result<Subscription>")]
pub struct SubscribeLeaders {
    name: Bytes,
    recipient: Recipient<LeaderEvent>,
}

impl EtcdRequest<Client> for SubscribeLeaders {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeLeaders"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        let subscription = client.leaders(self.name).deliver_to(self.recipient);
        Box::pin(std::future::ready(Ok(subscription)))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}
