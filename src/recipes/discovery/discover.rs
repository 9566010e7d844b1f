//! A request for the instances of a service.

use std::future::IntoFuture;

use actix::{Message, Recipient};
use bytes::Bytes;

use super::{Discovery, DiscoveryEvent, Subscription};
use crate::{
    client::{Client, subscription::subscribe},
    error::{Error, Result},
    request::{EtcdRequest, IntoBytes, ResponseFuture},
    retry::availability::attempt_until_available,
};

/// A request for the instances of a service. Awaiting it returns a [`Discovery`]; [`deliver_to`](Discover::deliver_to)
/// sends the instances to an actor. Without a client (`Discover<()>`), `deliver_to` returns a message to the actor
/// [`Etcd`](crate::Etcd).
///
/// Awaiting it fails with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty, and
/// with the error of the read if the keys cannot be read within the client's `request_timeout`, unless it
/// [waits](Discover::wait). Later outages do not end the discovery.
#[derive(Debug, Clone)]
#[must_use = "discovery starts when this is awaited or delivered to an actor"]
pub struct Discover<C = ()> {
    target: Bytes,
    wait: bool,
    client: C,
}

/// Requests the instances of the service `target`, without a client.
pub fn discover(target: impl IntoBytes) -> Discover {
    Discover {
        target: target.into_bytes(),
        wait: false,
        client: (),
    }
}

impl Client {
    /// Requests the instances of the service `target`, now and in the future: those registered under `<target>/`.
    pub fn discover(&self, target: impl IntoBytes) -> Discover<Client> {
        discover(target).on(self)
    }
}

impl<C> Discover<C> {
    /// Waits without a deadline until the keys are read: temporary errors, such as an unreachable cluster, are retried.
    /// Other errors, such as a denied permission, fail at once. Fails when the client is shut down. Dropping the future
    /// stops waiting. Default: fails after the client's `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }
}

impl Discover {
    /// Binds the request to a client.
    pub fn on(self, client: &Client) -> Discover<Client> {
        Discover {
            target: self.target,
            wait: self.wait,
            client: client.clone(),
        }
    }

    /// Returns a message to the actor [`Etcd`](crate::Etcd) that starts sending [`DiscoveryEvent`]s to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<DiscoveryEvent>) -> SubscribeInstances {
        SubscribeInstances {
            discover: self,
            recipient,
        }
    }
}

impl Discover<Client> {
    /// Sends the instances, and each change of them, to an actor. The next event is sent when the actor has handled the
    /// last one; changes in between are merged. The delivery ends when the actor stops, the client is shut down, or the
    /// subscription is dropped. Fails as awaiting the request does.
    pub async fn deliver_to(self, recipient: Recipient<DiscoveryEvent>) -> Result<Subscription> {
        let client = self.client.clone();
        let if_shut_down = DiscoveryEvent::Ended(Error::shut_down());
        let discovery = self.await?;
        let events = discovery.for_background();
        Ok(subscribe(&client, events, recipient, Some(if_shut_down)))
    }
}

impl IntoFuture for Discover<Client> {
    type Output = Result<Discovery>;
    type IntoFuture = ResponseFuture<Discovery>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let open = || Discovery::open(self.client.clone(), self.target.clone());
            attempt_until_available(self.wait, open).await
        })
    }
}

/// A message to the actor [`Etcd`](crate::Etcd) that sends the instances of a service, and each change of them, to
/// another actor: `etcd.send(discover("services/web").deliver_to(recipient))`. The response is a [`Subscription`].
///
/// Sent with `do_send`, the delivery continues until the actor stops or the client is shut down.
#[derive(Clone, Message)]
#[rtype(result = "Result<Subscription>")]
pub struct SubscribeInstances {
    discover: Discover,
    recipient: Recipient<DiscoveryEvent>,
}

impl EtcdRequest<Client> for SubscribeInstances {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeInstances"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        Box::pin(self.discover.on(client).deliver_to(self.recipient))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}
