//! Leaders and instances as messages to an actor.

use actix::{Message, Recipient};
use bytes::Bytes;

use super::{
    discovery::{Discover, DiscoveryEvent},
    election::{LeaderEvent, Subscription},
};
use crate::{
    client::Client,
    error::Result,
    request::{EtcdRequest, ResponseFuture},
};

/// Send every change of who leads an election to an actor, the next one when the last was handled:
/// `etcd.send(leaders("jobs").deliver_to(recipient))`. Gives the handle that ends it.
///
/// Sent with `do_send` it goes on until the actor or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<Subscription>")]
pub struct SubscribeLeaders {
    pub(crate) name: Bytes,
    pub(crate) recipient: Recipient<LeaderEvent>,
}

impl EtcdRequest<Client> for SubscribeLeaders {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeLeaders"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        let subscription = client.send_leaders_to(self.name, self.recipient);
        Box::pin(std::future::ready(Ok(subscription)))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}

/// Send the instances of a service to an actor, now and whenever they change, the next time when the last was handled:
/// `etcd.send(discover("services/web").deliver_to(recipient))`. Gives the handle that ends it.
///
/// Sent with `do_send` it goes on until the actor or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<Subscription>")]
pub struct SubscribeInstances {
    pub(crate) discover: Discover,
    pub(crate) recipient: Recipient<DiscoveryEvent>,
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
