//! A lease in the hands of its owner.

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
        Announce, Keep, Release,
        actor::now,
        cell::{LeaseCell, OnTheWay},
        deadline::Deadline,
        service::LeaseService,
    },
};
use super::{TimeToLive, revoke, time_to_live};
use crate::{
    error::Result,
    runtime::delivery::{SendOnDrop, deliver},
};

/// A lease that was granted.
///
/// Kept alive if that was asked for, until this handle is dropped. Then it ends with its time, or at once with
/// [`revoke_on_drop`](Self::revoke_on_drop).
#[must_use = "a lease is not kept alive once its handle is dropped"]
pub struct Lease {
    client: LeaseService,
    cell: Arc<LeaseCell>,
    /// Until it is kept.
    deadline: Option<Box<Deadline>>,
    /// The keeper knows it, kept or not.
    announced: bool,
    released: bool,
}

impl Lease {
    pub(super) fn new(client: LeaseService, cell: Arc<LeaseCell>, deadline: Deadline) -> Self {
        Self {
            client,
            cell,
            deadline: Some(Box::new(deadline)),
            announced: false,
            released: false,
        }
    }

    /// Its id, for [`Put::lease`](crate::kv::Put::lease) and for others that may keep it alive or revoke it.
    pub fn id(&self) -> i64 {
        self.cell.id()
    }

    /// Its time to live, as etcd granted it.
    pub fn ttl(&self) -> Duration {
        self.cell.ttl()
    }

    /// How long the server has it for certain, unless someone revokes it. Counted on the monotonic clock.
    pub fn remaining(&self) -> Duration {
        if self.cell.lost().is_some() {
            return Duration::ZERO;
        }
        self.deadline().saturating_duration_since(now())
    }

    /// When that ends.
    pub fn deadline(&self) -> Instant {
        self.cell.deadline()
    }

    /// Keeps it alive from now on, until this handle is dropped.
    pub fn keep_alive(&mut self) {
        if let Some(deadline) = self.deadline.take() {
            self.announced = true;
            self.client.keeper.do_send(Keep {
                cell: OnTheWay::new(self.cell.clone()),
                deadline: *deadline,
            });
        }
    }

    /// Revokes it when this handle is dropped or the client shut down.
    pub fn revoke_on_drop(mut self) -> Self {
        self.cell.set_revoke_on_drop();
        self.announce();
        self
    }

    /// Makes it known to the keeper if it is not.
    pub(super) fn announce(&mut self) {
        if !std::mem::replace(&mut self.announced, true) {
            let cell = self.cell.clone();
            self.client.keeper.do_send(Announce { cell });
        }
    }

    /// What happens to it from now on, if it is kept. Of a lost lease: that it is lost.
    pub fn events(&self) -> LeaseEvents {
        self.cell.events()
    }

    /// Sends what happens to it from now on to an actor, the next event when the last was handled. One that is far
    /// behind misses the oldest; never the last.
    pub fn deliver_to(&self, recipient: Recipient<LeaseMessage>) {
        let lease = self.id();
        let news = self
            .events()
            .map(move |event| LeaseMessage { lease, event });
        let event = self.cell.lost().map(LeaseEvent::Lost);
        let last = event.map(|event| LeaseMessage { lease, event });
        let unheard = SendOnDrop::new(recipient.clone(), last);
        self.client.core.run(Box::new(move || {
            unheard.disarm();
            actix_rt::spawn(deliver(news, recipient));
        }));
    }

    /// Waits until a kept lease is lost, and tells why. A lease that is not kept never is.
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

    /// Asks the server how long it has left and, with `.with_keys()`, which keys are bound to it.
    pub fn time_to_live(&self) -> TimeToLive<LeaseService> {
        time_to_live(self.id()).on(&self.client)
    }

    /// The keys bound to it.
    pub async fn keys(&self) -> Result<Vec<Bytes>> {
        Ok(self.time_to_live().with_keys().await?.keys)
    }

    /// Ends it; its keys are deleted. If that fails it is not kept any more and ends with its time.
    pub async fn revoke(mut self) -> Result<()> {
        self.release(false);
        revoke(self.id()).on(&self.client).await.map(drop)
    }

    /// Leaves it alone: it is neither kept any more nor revoked, and somebody else may keep it by its id.
    pub fn detach(mut self) -> i64 {
        self.release(false);
        self.id()
    }

    fn release(&mut self, revoke: bool) {
        self.released = true;
        self.cell.close();
        if self.announced {
            self.client.keeper.do_send(Release {
                cell: self.cell.clone(),
                revoke,
            });
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.released {
            let may_be_there = matches!(
                self.cell.lost(),
                None | Some(LeaseLost::NeverConfirmed | LeaseLost::PermissionDenied)
            );
            let revoke = self.cell.revoke_on_drop() && may_be_there;
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
