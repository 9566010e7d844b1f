//! Grants a lease.

use std::{sync::Arc, time::Duration};

use actix::Recipient;

use super::{
    LeaseMessage, SubscribeLease,
    engine::{clock::now, deadline::Deadline, lease_cell::LeaseCell, lease_service::LeaseClient},
};
use super::{lease_handle::Lease, revoke};
use crate::{
    call::Caller,
    error::{Error, ErrorKind, Outcome, Result},
    proto::{LeaseGrantRequest, LeaseGrantResponse, rpc, rpc::RpcClass},
    request::{ClientHandle, macros::request},
    transport::grpc,
};

/// A request that grants a lease. Awaiting it returns a [`Lease`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Grant<C = ()> {
    ttl: Duration,
    id: Option<i64>,
    options: KeepOptions,
    timeout: Option<Duration>,
    client: C,
}

#[derive(Debug, Clone, Copy, Default)]
struct KeepOptions {
    keep: bool,
    revoke_on_drop: bool,
    give_up_after: Option<Duration>,
}

request!(Grant { ttl, id, options } -> Lease, LeaseClient);

/// Creates a request that grants a lease. The TTL is rounded up to whole seconds. etcd raises a TTL that is shorter
/// than one and a half election timeouts.
pub fn grant(ttl: Duration) -> Grant {
    Grant {
        ttl,
        id: None,
        options: KeepOptions::default(),
        timeout: None,
        client: (),
    }
}

impl Grant {
    /// Turns the request into a message to the actor [`Etcd`](crate::Etcd) that grants the lease and sends its events
    /// to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<LeaseMessage>) -> SubscribeLease {
        SubscribeLease {
            grant: self,
            recipient,
        }
    }
}

impl<C> Grant<C> {
    /// Sets the id of the lease, which is not zero. The request fails with [`ErrorKind::LeaseExists`] if a lease with
    /// this id exists, and is not retried when its outcome is unknown. Default: a random id; such a request is retried.
    pub fn id(mut self, id: i64) -> Self {
        self.id = Some(id);
        self
    }

    /// Keeps the lease alive until its handle is dropped. It is renewed after every third of its TTL. A keepalive
    /// without a response within a sixth of the TTL (at least 300 ms, at most 10 s) is sent again to another member.
    /// Default: the lease is not kept alive.
    pub fn keep_alive(mut self) -> Self {
        self.options.keep = true;
        self
    }

    /// Sets how long keepalives without a response continue after the deadline of a kept lease, before the lease
    /// counts as lost. Default: twice the TTL.
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
        let ttl = whole_seconds(self.ttl)?;
        let service = client.leases();
        if service.core.holders().is_stopping() {
            return Err(Error::shut_down());
        }
        let (id, class) = match self.id {
            Some(0) => return Err(zero_id()),
            Some(id) => (id, RpcClass::Mutation),
            None => (fastrand::i64(1..), RpcClass::Grant),
        };
        let rpc = rpc::LEASE_GRANT.with_class(class);
        let sent_at = now();
        let body = grpc::encode(&LeaseGrantRequest { ttl, id })?;
        let response: LeaseGrantResponse = client.caller().unary(rpc, body, timeout).await?;
        if !response.error.is_empty() {
            return Err(Error::new(
                ErrorKind::Other,
                Outcome::Rejected,
                response.error,
            ));
        }
        // No TTL: an earlier attempt granted the lease and its response was lost. etcd never grants less than
        // requested.
        let ttl = if response.ttl > 0 { response.ttl } else { ttl };
        let mut deadline = Deadline::granted(ttl, sent_at, now(), fastrand::f64());
        if let Some(after) = self.options.give_up_after {
            deadline = deadline.give_up_after(after);
        }
        let cluster = response.header.map_or(0, |header| header.cluster_id);
        let cell = LeaseCell::new(id, cluster, deadline.ttl(), deadline.deadline());
        let cell = Arc::new(cell);
        let mut lease = Lease::new(service.clone(), cell, deadline);
        if self.options.keep {
            lease.keep_alive();
        } else if self.id.is_some() {
            lease.register();
        }
        if self.options.revoke_on_drop {
            lease = lease.revoke_on_drop();
        }
        // Checked last: the keeper ends every lease that it received before the shutdown began.
        if service.core.holders().is_stopping() {
            let remaining = timeout.saturating_sub(now().saturating_duration_since(sent_at));
            return Err(revoke_after_shutdown(lease, service.caller(), remaining).await);
        }
        Ok(lease)
    }
}

/// Revokes a lease that was granted during the client's shutdown.
async fn revoke_after_shutdown(lease: Lease, caller: &Caller, timeout: Duration) -> Error {
    let revoked = revoke::send(caller, lease.detach(), timeout).await;
    Error::shut_down().with_outcome(if revoked.is_ok() {
        Outcome::Rejected
    } else {
        Outcome::Unknown
    })
}

/// Zero is etcd's "no lease". Negative ids are valid: other clients grant leases with them.
pub(super) fn zero_id() -> Error {
    Error::invalid("the id of a lease is never zero")
}

fn whole_seconds(ttl: Duration) -> Result<i64> {
    let partial = u64::from(ttl.subsec_nanos() > 0);
    match i64::try_from(ttl.as_secs().saturating_add(partial)) {
        Ok(0) => Err(Error::invalid(
            "the TTL of a lease must be at least one second",
        )),
        Ok(seconds) => Ok(seconds),
        Err(_) => Err(Error::invalid("the TTL of the lease is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_rounded_up_to_whole_seconds() {
        let seconds = |ttl| whole_seconds(ttl).map_err(|error| error.kind());
        assert_eq!(seconds(Duration::from_millis(1)), Ok(1));
        assert_eq!(seconds(Duration::from_secs(7)), Ok(7));
        for invalid in [
            Duration::ZERO,
            Duration::MAX,
            Duration::from_secs(u64::MAX),
            Duration::new(i64::MAX.unsigned_abs(), 1),
        ] {
            assert_eq!(
                seconds(invalid),
                Err(ErrorKind::InvalidArgument),
                "{invalid:?}"
            );
        }
    }
}
