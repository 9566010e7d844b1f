//! Delivery of a stream of events to an actor, for as long as a handle is held.

use actix::{Message, Recipient};
use tokio::sync::oneshot;
use tokio_stream::Stream;

use super::Client;
use crate::runtime::delivery::{self, SendOnDrop};

/// Handle of a delivery of events to an actor. Dropping it stops the delivery.
#[derive(Debug)]
#[must_use = "dropping the subscription stops the delivery"]
pub struct Subscription {
    end: oneshot::Sender<()>,
    /// Keeps the client running.
    _client: Client,
}

impl Subscription {
    /// Creates a handle, and a future that resolves when the handle is dropped, unless it was detached.
    pub(crate) fn new(client: &Client) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (end, ended) = oneshot::channel();
        let dropped = async move {
            // A received value means that the subscription was detached.
            if ended.await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        let subscription = Self {
            end,
            _client: client.clone(),
        };
        (subscription, dropped)
    }

    /// Continues the delivery without the handle, until the actor stops or the client ends. The delivery does not keep
    /// the client running.
    pub fn detach(self) {
        // An error means that the delivery has already ended.
        let _ = self.end.send(());
    }
}

/// Delivers a stream to an actor from the client's thread. The next item is sent when the actor has handled the last
/// one. If the client was shut down, the actor gets `if_shut_down` instead. The stream must hold only clients for
/// background work, so that the delivery does not keep the client running.
pub(crate) fn subscribe<M>(
    client: &Client,
    items: impl Stream<Item = M> + Send + Unpin + 'static,
    recipient: Recipient<M>,
    if_shut_down: Option<M>,
) -> Subscription
where
    M: Message<Result = ()> + Send + 'static,
{
    let deliver = |recipient| delivery::deliver(items, recipient);
    start(client, deliver, recipient, if_shut_down)
}

/// Like [`subscribe`], for a stream that ends when the client is shut down: the client's thread does not end before the
/// actor has received the last item.
pub(crate) fn subscribe_to_end<M>(
    client: &Client,
    items: impl Stream<Item = M> + Send + Unpin + 'static,
    recipient: Recipient<M>,
    if_shut_down: Option<M>,
) -> Subscription
where
    M: Message<Result = ()> + Send + 'static,
{
    let deliver = |recipient| delivery::deliver_to_end(items, recipient);
    start(client, deliver, recipient, if_shut_down)
}

fn start<M, D>(
    client: &Client,
    deliver: impl FnOnce(Recipient<M>) -> D + Send + 'static,
    recipient: Recipient<M>,
    if_shut_down: Option<M>,
) -> Subscription
where
    M: Message<Result = ()> + Send + 'static,
    D: Future<Output = ()> + 'static,
{
    let (subscription, handle_dropped) = Subscription::new(client);
    let final_message = SendOnDrop::new(recipient.clone(), if_shut_down);
    client.run(move || {
        final_message.disarm();
        let delivered = deliver(recipient);
        actix_rt::spawn(async move {
            tokio::select! {
                () = handle_dropped => {}
                () = delivered => {}
            }
        });
    });
    subscription
}
