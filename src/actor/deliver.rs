//! What goes on for longer, delivered to an actor: watches, leases, connectivity, elections, services.

use actix::{Message, Recipient};
use bytes::Bytes;

use super::EtcdRequest;
use crate::{
    balancer::ConnectivityChange,
    client::Client,
    error::Result,
    lease::{Grant, Lease, LeaseMessage},
    recipes::{
        discovery::{Discover, DiscoveryEvent},
        election::{LeaderEvent, Subscription},
    },
    request::ResponseFuture,
    runtime::delivery::gone,
    watch::{WatchEvent, WatchHandle, WatchRequest},
};

/// Open a watch and send its items to an actor, the next one when the last was handled:
/// `etcd.send(watch("config/").prefix().deliver_to(recipient))`. Gives the handle that ends it.
///
/// Sent with `do_send` it goes on until the actor or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<WatchHandle>")]
pub struct SubscribeWatch {
    pub(crate) watch: WatchRequest<()>,
    pub(crate) recipient: Recipient<WatchEvent>,
}

impl EtcdRequest for SubscribeWatch {
    type Response = WatchHandle;

    fn name(&self) -> &'static str {
        "SubscribeWatch"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<WatchHandle> {
        Box::pin(self.watch.on(client).deliver_to(self.recipient))
    }

    fn unwanted(self, handle: WatchHandle) {
        handle.detach();
    }
}

/// Grant a lease and send what happens to it to an actor, from its first renewal on:
/// `etcd.send(grant(ttl).keep_alive().deliver_to(recipient))`. Gives the lease, which is kept until it is dropped.
///
/// Sent with `do_send` it is kept until that actor, the arbiter of [`Etcd`](crate::Etcd) or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<Lease>")]
pub struct SubscribeLease {
    pub(crate) grant: Grant,
    pub(crate) recipient: Recipient<LeaseMessage>,
}

impl EtcdRequest for SubscribeLease {
    type Response = Lease;

    fn name(&self) -> &'static str {
        "SubscribeLease"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Lease> {
        let granted = self.grant.send_with(client);
        Box::pin(async move {
            let lease = granted.await?;
            lease.deliver_to(self.recipient);
            Ok(lease)
        })
    }

    fn unwanted(self, lease: Lease) {
        actix_rt::spawn(async move {
            tokio::select! {
                _ = lease.lost() => {}
                () = gone(&self.recipient) => {}
            }
        });
    }
}

/// Send every change of an endpoint's state to an actor, the next one when the last was handled, until that actor ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<()>")]
pub struct SubscribeConnectivity(pub Recipient<ConnectivityChange>);

impl EtcdRequest for SubscribeConnectivity {
    type Response = ();

    fn name(&self) -> &'static str {
        "SubscribeConnectivity"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<()> {
        client.send_connectivity_to(self.0);
        Box::pin(std::future::ready(Ok(())))
    }
}

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

impl EtcdRequest for SubscribeLeaders {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeLeaders"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        let observation = client.send_leaders_to(self.name, self.recipient);
        Box::pin(std::future::ready(Ok(observation)))
    }

    fn unwanted(self, observation: Subscription) {
        observation.detach();
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

impl EtcdRequest for SubscribeInstances {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeInstances"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        Box::pin(self.discover.on(client).deliver_to(self.recipient))
    }

    fn unwanted(self, observation: Subscription) {
        observation.detach();
    }
}
