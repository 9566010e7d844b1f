//! The handle of a granted lease.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Recipient;
use bytes::Bytes;
use tokio_stream::StreamExt;

use super::{
    LeaseEvent, LeaseEvents, LeaseLost, LeaseMessage,
    engine::{
        clock::{now, to_monotonic},
        deadline::Deadline,
        keeper::{KeepLease, LeaseOrigin, RegisterLease, ReleaseLease},
        lease_cell::{LeaseCell, UndeliveredLease},
        lease_service::LeaseService,
    },
};
use super::{TimeToLive, revoke, time_to_live};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    request::ClientHandle,
    runtime::delivery::{SendOnDrop, deliver},
};

/// Handle of a granted lease.
///
/// A lease granted with [`keep_alive`](super::Grant::keep_alive) is kept alive until this handle is dropped. Then it
/// expires, or is revoked at once with [`revoke_on_drop`](Self::revoke_on_drop).
#[must_use = "a lease is not kept alive once its handle is dropped"]
pub struct Lease {
    client: LeaseService,
    cell: Arc<LeaseCell>,
    /// `None` once the keeper has it.
    deadline: Option<Box<Deadline>>,
    /// Whether the keeper has received the lease, kept or not.
    registered: bool,
    released: bool,
}

impl Lease {
    pub(super) fn new(client: LeaseService, cell: Arc<LeaseCell>, deadline: Deadline) -> Self {
        Self {
            client,
            cell,
            deadline: Some(Box::new(deadline)),
            registered: false,
            released: false,
        }
    }

    /// Returns the id, for [`Put::lease`](crate::kv::Put::lease) and for other clients that keep the lease alive or
    /// revoke it.
    pub fn id(&self) -> i64 {
        self.cell.id()
    }

    /// Returns the TTL as granted by etcd.
    pub fn ttl(&self) -> Duration {
        self.cell.ttl()
    }

    /// Returns for how long the server has the lease unless it is revoked, or zero if the lease is lost. Reads the clock
    /// on every call: the time that this process was paused has passed, and on Linux and Android also the time that the
    /// machine was suspended.
    pub fn remaining(&self) -> Duration {
        self.cell.remaining(now())
    }

    /// Returns the time until which the server has the lease unless it is revoked, on the monotonic clock, which stops
    /// while the machine is suspended. [`remaining`](Self::remaining) counts that time as well.
    pub fn deadline(&self) -> Instant {
        to_monotonic(self.cell.deadline())
    }

    /// Keeps the lease alive until this handle is dropped.
    pub fn keep_alive(&mut self) {
        self.keep(LeaseOrigin::Granted);
    }

    pub(super) fn keep(&mut self, origin: LeaseOrigin) {
        if let Some(deadline) = self.deadline.take() {
            self.registered = true;
            self.client.keeper.do_send(KeepLease {
                lease: UndeliveredLease::new(self.cell.clone()),
                deadline: *deadline,
                origin,
            });
        }
    }

    /// Revokes the lease when this handle is dropped or the client is shut down.
    pub fn revoke_on_drop(mut self) -> Self {
        let counted = self.client.core.holders().count_lease();
        self.cell.set_revoke_on_drop(counted);
        self.register();
        self
    }

    /// Registers the lease with the keeper, which replaces an earlier lease with the same id.
    pub(super) fn register(&mut self) {
        if !std::mem::replace(&mut self.registered, true) {
            let cell = self.cell.clone();
            self.client.keeper.do_send(RegisterLease { cell });
        }
    }

    /// Returns the events of a kept lease from now on. A lost lease yields only [`LeaseEvent::Lost`].
    pub fn events(&self) -> LeaseEvents {
        self.cell.events()
    }

    /// Sends the events from now on to an actor, each after the previous one was handled. A slow actor misses the
    /// oldest events, never the last one.
    pub fn deliver_to(&self, recipient: Recipient<LeaseMessage>) {
        let lease = self.id();
        let messages = self
            .events()
            .map(move |event| LeaseMessage { lease, event });
        let event = self.cell.lost().map(LeaseEvent::Lost);
        let last = event.map(|event| LeaseMessage { lease, event });
        let final_message = SendOnDrop::new(recipient.clone(), last);
        self.client.core.run(Box::new(move || {
            final_message.disarm();
            actix_rt::spawn(deliver(messages, recipient));
        }));
    }

    /// Waits until a kept lease is lost and returns the reason. Never completes for a lease that is not kept.
    pub fn lost(&self) -> impl Future<Output = LeaseLost> + Send + 'static + use<> {
        let mut events = self.events();
        async move {
            while let Some(event) = events.next().await {
                if let LeaseEvent::Lost(reason) = event {
                    return reason;
                }
            }
            std::future::pending().await
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.cell.lost().is_some()
    }

    /// Creates a request for the remaining time on the server and, with `.with_keys()`, the keys bound to the lease.
    pub fn time_to_live(&self) -> TimeToLive<LeaseService> {
        time_to_live(self.id()).on(&self.client)
    }

    /// Returns the keys bound to the lease. Fails as any read does.
    pub async fn keys(&self) -> Result<Vec<Bytes>> {
        Ok(self.time_to_live().with_keys().await?.keys)
    }

    /// Revokes the lease, which deletes its keys. If that fails, the lease is kept no longer and expires. Fails with
    /// [`ErrorKind::ClusterChanged`](crate::ErrorKind::ClusterChanged) if the client follows another cluster.
    pub async fn revoke(mut self) -> Result<()> {
        self.release(false);
        let cluster = self.client.caller().context.cluster.get();
        if self.cell.is_of_other_cluster(cluster) {
            let reason = "the lease belongs to the cluster that the client has left";
            return Err(Error::new(
                ErrorKind::ClusterChanged,
                Outcome::NotSent,
                reason,
            ));
        }
        revoke(self.id()).on(&self.client).await.map(drop)
    }

    /// Stops keeping the lease without revoking it and returns the id, by which another client can
    /// [adopt](super::lease_from) it.
    pub fn detach(mut self) -> i64 {
        self.release(false);
        self.id()
    }

    fn release(&mut self, revoke: bool) {
        self.released = true;
        self.cell.close();
        if self.registered {
            self.client.keeper.do_send(ReleaseLease {
                cell: self.cell.clone(),
                revoke,
            });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.released {
            let may_exist = matches!(
                self.cell.lost(),
                None | Some(LeaseLost::NeverConfirmed | LeaseLost::PermissionDenied)
            );
            let revoke = self.cell.revoke_on_drop() && may_exist;
            self.release(revoke);
        }
    }
}

impl From<&Lease> for i64 {
    fn from(lease: &Lease) -> Self {
        lease.id()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.id())
            .field("ttl", &self.ttl())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
