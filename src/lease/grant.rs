//! Granting a lease.

use std::{sync::Arc, time::Duration};

use actix::Recipient;

use super::{
    LeaseMessage,
    engine::{clock::now, deadline::Deadline, lease_cell::LeaseCell},
};
use super::{lease_handle::Lease, revoke};
use crate::{
    actor::SubscribeLease,
    call::Rpc,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    proto::{LeaseGrantRequest, LeaseGrantResponse},
    request::request,
    retry::RpcClass,
    transport::grpc,
};

/// Grants a lease.
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

request!(Grant { ttl, id, options } -> Lease);

/// A request that grants a lease. Its time to live is counted in whole seconds, rounded up; etcd raises what is shorter
/// than one and a half election time-outs.
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
    /// A message to the actor [`Etcd`](crate::Etcd): grant the lease, and send what happens to it to this actor.
    pub fn deliver_to(self, recipient: Recipient<LeaseMessage>) -> SubscribeLease {
        SubscribeLease {
            grant: self,
            recipient,
        }
    }
}

impl<C> Grant<C> {
    /// The lease's id. Fails with [`ErrorKind::LeaseExists`] if there is such a lease; and unlike a grant under an id
    /// of the client's own it is not tried again when its outcome is unknown. Default: a random one.
    pub fn id(mut self, id: i64) -> Self {
        self.id = Some(id);
        self
    }

    /// Keeps it alive until its handle is dropped. It is renewed every third of its time to live; a member that does not
    /// answer within a sixth of it (at least 300 ms, at most 10 s) is not waited for, and another one is asked.
    pub fn keep_alive(mut self) -> Self {
        self.options.keep = true;
        self
    }

    /// How long past its deadline a kept lease is asked for when nobody answers, before it counts as lost.
    /// Default: twice its time to live.
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.options.give_up_after = Some(after);
        self
    }

    /// Revokes it when its handle is dropped or the client shut down. Default: it ends with its time.
    pub fn revoke_on_drop(mut self) -> Self {
        self.options.revoke_on_drop = true;
        self
    }

    async fn perform(self, client: &Client, timeout: Duration) -> Result<Lease> {
        let ttl = whole_seconds(self.ttl)?;
        if client.is_ending() {
            return Err(Error::shut_down());
        }
        let (id, class) = match self.id {
            Some(id) if id <= 0 => {
                return Err(Error::invalid("a lease's id is a positive number"));
            }
            Some(id) => (id, RpcClass::Mutation),
            None => (fastrand::i64(1..), RpcClass::Grant),
        };
        let rpc = Rpc {
            path: "/etcdserverpb.Lease/LeaseGrant",
            class,
            leaderless: false,
            waits: false,
        };
        let asked_at = now();
        let body = grpc::encode(&LeaseGrantRequest { ttl, id })?;
        let answer: LeaseGrantResponse = client.caller().unary(rpc, body, timeout).await?;
        if !answer.error.is_empty() {
            return Err(Error::new(
                ErrorKind::Other,
                Outcome::Rejected,
                answer.error,
            ));
        }
        // Granted by an attempt whose answer was lost: etcd never grants less than asked for.
        let ttl = if answer.ttl > 0 { answer.ttl } else { ttl };
        let mut deadline = Deadline::granted(ttl, asked_at, now(), fastrand::f64());
        if let Some(after) = self.options.give_up_after {
            deadline = deadline.give_up_after(after);
        }
        let cell = Arc::new(LeaseCell::new(id, deadline.ttl(), deadline.deadline()));
        let mut lease = Lease::new(client.clone(), cell, deadline);
        if self.options.keep {
            lease.keep_alive();
        } else if self.id.is_some() {
            lease.announce();
        }
        if self.options.revoke_on_drop {
            lease = lease.revoke_on_drop();
        }
        // Asked only now: what was given to the keeper before the client began to end is ended by it.
        if client.is_ending() {
            let left = timeout.saturating_sub(now().saturating_duration_since(asked_at));
            return Err(take_back(lease, client, left).await);
        }
        Ok(lease)
    }
}

/// Granted while the client was shut down: there is nobody to keep it, and it is not left behind either.
async fn take_back(lease: Lease, client: &Client, timeout: Duration) -> Error {
    let gone = revoke::send(client.caller(), lease.detach(), timeout).await;
    Error::shut_down().with_outcome(if gone.is_ok() {
        Outcome::Rejected
    } else {
        Outcome::Unknown
    })
}

fn whole_seconds(ttl: Duration) -> Result<i64> {
    let rest = u64::from(ttl.subsec_nanos() > 0);
    match i64::try_from(ttl.as_secs().saturating_add(rest)) {
        Ok(0) => Err(Error::invalid(
            "a lease's time to live is at least a second",
        )),
        Ok(seconds) => Ok(seconds),
        Err(_) => Err(Error::invalid("the lease's time to live is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_rounded_up_and_refused_where_it_cannot_be_told() {
        let seconds = |ttl| whole_seconds(ttl).map_err(|error| error.kind());
        assert_eq!(seconds(Duration::from_millis(1)), Ok(1));
        assert_eq!(seconds(Duration::from_secs(7)), Ok(7));
        for bad in [
            Duration::ZERO,
            Duration::MAX,
            Duration::from_secs(u64::MAX),
            Duration::new(i64::MAX.unsigned_abs(), 1),
        ] {
            assert_eq!(seconds(bad), Err(ErrorKind::InvalidArgument), "{bad:?}");
        }
    }
}
