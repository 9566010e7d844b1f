//! Takes over a lease by its id.

use std::{sync::Arc, time::Duration};

use super::{
    Lease,
    engine::{
        clock::now, deadline::Deadline, keeper::LeaseOrigin, lease_cell::LeaseCell,
        lease_service::LeaseClient,
    },
    keep_alive_once,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    request::macros::request,
};

/// A request that takes over a lease by its id. Awaiting it returns a [`Lease`] that is kept alive.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct AdoptLease<C = ()> {
    id: i64,
    options: AdoptOptions,
    timeout: Option<Duration>,
    client: C,
}

#[derive(Debug, Clone, Copy, Default)]
struct AdoptOptions {
    revoke_on_drop: bool,
    give_up_after: Option<Duration>,
}

request!(AdoptLease { id, options } -> Lease, LeaseClient);

/// Creates a request that takes over a lease by its id: it renews the lease, learns its TTL and keeps it alive. For a
/// process that continues after a restart with the lease it has [detached](Lease::detach), and for leases that another
/// program granted.
///
/// Fails with [`ErrorKind::LeaseNotFound`] if the lease does not exist. Another handle of this client that keeps the
/// lease alive loses it, with the reason [`TakenOver`](super::LeaseLost::TakenOver). Other clients are not affected.
pub fn lease_from(lease: impl Into<i64>) -> AdoptLease {
    AdoptLease {
        id: lease.into(),
        options: AdoptOptions::default(),
        timeout: None,
        client: (),
    }
}

impl<C> AdoptLease<C> {
    /// Sets how long keepalives without a response continue after the deadline, before the lease counts as lost.
    /// Default: twice the TTL.
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.options.give_up_after = Some(after);
        self
    }

    /// Revokes the lease when its handle is dropped or the client is shut down. Default: the lease expires.
    pub fn revoke_on_drop(mut self) -> Self {
        self.options.revoke_on_drop = true;
        self
    }

    async fn perform(self, client: &impl LeaseClient, timeout: Duration) -> Result<Lease> {
        let service = client.leases();
        if service.core.holders().is_stopping() {
            return Err(Error::shut_down());
        }
        let renewal = keep_alive_once::renew(client, self.id, timeout).await?;
        if renewal.ttl <= 0 {
            let reason = "the lease to adopt does not exist";
            return Err(Error::new(
                ErrorKind::LeaseNotFound,
                Outcome::Rejected,
                reason,
            ));
        }
        let mut deadline = Deadline::granted(renewal.ttl, renewal.sent_at, now(), fastrand::f64());
        if let Some(after) = self.options.give_up_after {
            deadline = deadline.give_up_after(after);
        }
        let cluster = client.caller().context.cluster.get();
        let cell = LeaseCell::new(self.id, cluster, deadline.ttl(), deadline.deadline());
        let mut lease = Lease::new(service.clone(), Arc::new(cell), deadline);
        lease.keep(LeaseOrigin::Adopted);
        // Checked last: the keeper ends every lease that it received before the shutdown began.
        if service.core.holders().is_stopping() {
            lease.detach();
            return Err(Error::shut_down());
        }
        Ok(if self.options.revoke_on_drop {
            lease.revoke_on_drop()
        } else {
            lease
        })
    }

    /// Returns the id of the lease.
    pub fn lease(&self) -> i64 {
        self.id
    }
}
