//! Leases whose events are messages to an actor.

use actix::{Message, Recipient};

use super::{Grant, Lease, LeaseMessage, engine::lease_service::LeaseClient};
use crate::{
    error::Result,
    request::{EtcdRequest, ResponseFuture},
    runtime::delivery::actor_stopped,
};

/// Grants a lease and sends its events to an actor, starting with the first renewal:
/// `etcd.send(grant(ttl).keep_alive().deliver_to(recipient))`. Returns the lease, which is kept alive until dropped.
///
/// Sent with `do_send`, the lease is kept alive until the recipient, the arbiter of [`Etcd`](crate::Etcd) or the client
/// stops.
#[derive(Clone, Message)]
#[rtype(result = "Result<Lease>")]
pub struct SubscribeLease {
    pub(super) grant: Grant,
    pub(super) recipient: Recipient<LeaseMessage>,
}

impl<C: LeaseClient> EtcdRequest<C> for SubscribeLease {
    type Response = Lease;

    fn name(&self) -> &'static str {
        "SubscribeLease"
    }

    fn send_with(self, client: &C) -> ResponseFuture<Lease> {
        let granted = self.grant.send_with(client);
        Box::pin(async move {
            let lease = granted.await?;
            lease.deliver_to(self.recipient);
            Ok(lease)
        })
    }

    fn discard(self, lease: Lease) {
        actix_rt::spawn(async move {
            tokio::select! {
                _ = lease.lost() => {}
                () = actor_stopped(&self.recipient) => {}
            }
        });
    }
}
