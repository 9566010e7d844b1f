//! Takes items on behalf of an actor, and completes those that it has handled.

use std::{pin::pin, time::Duration};

use actix::{Message, Recipient};
use tokio::task::JoinSet;

use super::{Queue, QueueItem};
use crate::{
    client::{Client, Subscription},
    error::{Error, ErrorKind, Result},
    request::{EtcdRequest, ResponseFuture},
    runtime::{backoff::Backoff, delivery::actor_stopped},
};

/// Delays between takes while the cluster accepts no writes, because its storage quota is exhausted.
const NO_SPACE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).jitter(0.5);

/// Why an actor could not handle an item: any error, so that `?` works in its handler.
pub type ItemError = Box<dyn std::error::Error + Send + Sync>;

/// An item for an actor, sent by [`Queue::deliver_to`].
///
/// When the handler returns `Ok`, the item is completed, unless the handler has completed it or given it back itself. After
/// an error, or if the actor panics, it is ready again when its visibility time-out has passed.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), ItemError>")]
#[non_exhaustive]
pub enum QueueEvent {
    /// The next item.
    Item(QueueItem),
    /// No more items can be taken, for this reason. This is the last event; its result is ignored.
    Ended(Error),
}

impl Queue {
    /// Returns a message to the actor [`Etcd`](crate::Etcd) that starts sending items to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<QueueEvent>) -> DeliverItems {
        DeliverItems {
            queue: self,
            recipient,
        }
    }
}

impl Queue<Client> {
    /// Takes items and sends them to an actor, up to [`concurrency`](Self::concurrency) at once. Fails if the session
    /// cannot be opened.
    ///
    /// The delivery ends when the actor stops, the client is shut down, or the subscription is dropped, and with
    /// [`QueueEvent::Ended`] after an error of [`take`](Self::take). While the storage quota of the cluster is exhausted, it
    /// waits instead. After the end, items that the actor is working on are still completed.
    pub async fn deliver_to(self, recipient: Recipient<QueueEvent>) -> Result<Subscription> {
        let client = self.client.clone();
        let queue = self.for_background();
        // Errors of the first request are returned.
        drop(queue.taker().await?);
        let (subscription, dropped) = Subscription::new(&client);
        let started = client.run(move || {
            actix_rt::spawn(deliver_items(queue, recipient, dropped));
        });
        if started {
            Ok(subscription)
        } else {
            Err(Error::shut_down())
        }
    }
}

async fn deliver_items(
    queue: Queue<Client>,
    recipient: Recipient<QueueEvent>,
    dropped: impl Future<Output = ()>,
) {
    let mut handling = JoinSet::new();
    let mut backoff = NO_SPACE_BACKOFF.start();
    let last_event = {
        let mut ended = pin!(async {
            tokio::select! {
                () = dropped => {}
                () = actor_stopped(&recipient) => {}
            }
        });
        loop {
            if handling.len() >= queue.options.concurrency {
                tokio::select! {
                    () = &mut ended => break None,
                    _ = handling.join_next() => continue,
                }
            }
            let item = tokio::select! {
                biased;
                () = &mut ended => break None,
                item = queue.take() => item,
            };
            match item {
                Ok(item) => {
                    backoff = NO_SPACE_BACKOFF.start();
                    handling.spawn_local(handle_item(item, recipient.clone()));
                }
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    tracing::warn!(%error, "item not taken yet");
                    tokio::select! {
                        () = &mut ended => break None,
                        () = tokio::time::sleep(backoff.next_delay(fastrand::f64())) => {}
                    }
                }
                Err(error) => break Some(QueueEvent::Ended(error)),
            }
            while handling.try_join_next().is_some() {}
        }
    };
    if let Some(event) = last_event {
        recipient.do_send(event);
    }
    while handling.join_next().await.is_some() {}
}

/// Sends an item to the actor and completes it when the actor has handled it.
async fn handle_item(item: QueueItem, recipient: Recipient<QueueEvent>) {
    let (hold, key) = (item.hold().clone(), item.key().clone());
    let completed = match recipient.send(QueueEvent::Item(item)).await {
        Ok(Ok(())) if hold.has_ended() => Ok(()),
        Ok(Ok(())) => hold.complete(Vec::<crate::kv::Op>::new()).await,
        Ok(Err(error)) => {
            tracing::debug!(%error, ?key, "item was not handled, it is ready again after its visibility time-out");
            return;
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = completed {
        tracing::debug!(%error, ?key, "item was not completed");
    }
}

/// A message to the actor [`Etcd`](crate::Etcd) that takes items and sends them to another actor:
/// `etcd.send(queue("jobs").deliver_to(recipient))`. The response is a [`Subscription`].
///
/// Sent with `do_send`, the delivery continues until the actor stops or the client is shut down.
#[derive(Clone, Message)]
#[rtype(result = "Result<Subscription>")]
pub struct DeliverItems {
    queue: Queue,
    recipient: Recipient<QueueEvent>,
}

impl EtcdRequest<Client> for DeliverItems {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "DeliverItems"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        Box::pin(self.queue.on(client).deliver_to(self.recipient))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}
