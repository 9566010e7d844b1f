//! What goes on for longer, delivered to an actor: watches, leases, connectivity, elections, services.

use actix::{Message, Recipient};
use bytes::Bytes;

use super::FreeRequest;
use crate::{
    balancer::ConnectivityChange,
    client::Client,
    error::Result,
    lease::{Grant, Lease, LeaseNews},
    recipes::{
        discovery::{Discover, DiscoveryEvent},
        election::{LeaderEvent, Observation},
    },
    request::ResponseFuture,
    runtime::delivery::gone,
    watch::{OpenWatch, WatchHandle, WatchItem},
};

/// Open a watch and send its items to an actor, the next one when the last was handled:
/// `etcd.send(watch("config/").prefix().to(recipient))`. Gives the handle that ends it.
///
/// Sent with `do_send` it goes on until the actor or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<WatchHandle>")]
pub struct DeliverWatch {
    pub(crate) watch: OpenWatch<()>,
    pub(crate) recipient: Recipient<WatchItem>,
}

impl FreeRequest for DeliverWatch {
    type Response = WatchHandle;

    fn name(&self) -> &'static str {
        "DeliverWatch"
    }

    fn send_by(self, client: &Client) -> ResponseFuture<WatchHandle> {
        Box::pin(self.watch.on(client).send_to(self.recipient))
    }

    fn unwanted(self, handle: WatchHandle) {
        handle.detach();
    }
}

/// Grant a lease and send what happens to it to an actor, from its first renewal on:
/// `etcd.send(grant(ttl).keep_alive().to(recipient))`. Gives the lease, which is kept until it is dropped.
///
/// Sent with `do_send` it is kept until that actor, the arbiter of [`Etcd`](crate::Etcd) or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<Lease>")]
pub struct DeliverLease {
    pub(crate) grant: Grant,
    pub(crate) recipient: Recipient<LeaseNews>,
}

impl FreeRequest for DeliverLease {
    type Response = Lease;

    fn name(&self) -> &'static str {
        "DeliverLease"
    }

    fn send_by(self, client: &Client) -> ResponseFuture<Lease> {
        let granted = self.grant.send_by(client);
        Box::pin(async move {
            let lease = granted.await?;
            lease.send_to(self.recipient);
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
pub struct DeliverConnectivity(pub Recipient<ConnectivityChange>);

impl FreeRequest for DeliverConnectivity {
    type Response = ();

    fn name(&self) -> &'static str {
        "DeliverConnectivity"
    }

    fn send_by(self, client: &Client) -> ResponseFuture<()> {
        client.send_connectivity_to(self.0);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Send every change of who leads an election to an actor, the next one when the last was handled:
/// `etcd.send(leaders("jobs").to(recipient))`. Gives the handle that ends it.
///
/// Sent with `do_send` it goes on until the actor or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<Observation>")]
pub struct DeliverLeaders {
    pub(crate) name: Bytes,
    pub(crate) recipient: Recipient<LeaderEvent>,
}

impl FreeRequest for DeliverLeaders {
    type Response = Observation;

    fn name(&self) -> &'static str {
        "DeliverLeaders"
    }

    fn send_by(self, client: &Client) -> ResponseFuture<Observation> {
        let observation = client.send_leaders_to(self.name, self.recipient);
        Box::pin(std::future::ready(Ok(observation)))
    }

    fn unwanted(self, observation: Observation) {
        observation.detach();
    }
}

/// Send the instances of a service to an actor, now and whenever they change, the next time when the last was handled:
/// `etcd.send(discover("services/web").to(recipient))`. Gives the handle that ends it.
///
/// Sent with `do_send` it goes on until the actor or the client ends.
#[derive(Clone, Message)]
#[rtype(result = "Result<Observation>")]
pub struct DeliverInstances {
    pub(crate) discover: Discover,
    pub(crate) recipient: Recipient<DiscoveryEvent>,
}

impl FreeRequest for DeliverInstances {
    type Response = Observation;

    fn name(&self) -> &'static str {
        "DeliverInstances"
    }

    fn send_by(self, client: &Client) -> ResponseFuture<Observation> {
        Box::pin(self.discover.on(client).send_to(self.recipient))
    }

    fn unwanted(self, observation: Observation) {
        observation.detach();
    }
}
