//! Opens a session.

use std::{future::IntoFuture, time::Duration};

use tokio::sync::oneshot;

use super::{Session, SessionState, actor::SessionActor};
use crate::{
    client::Client,
    error::{Error, Result},
    lease::{Grant, Lease},
    request::ResponseFuture,
    retry::availability::attempt_until_available,
};

impl Client {
    /// Opens a session: a lease that is kept alive, and revoked when the session is dropped. Awaiting the builder
    /// fails if the lease cannot be granted within the client's `request_timeout`, or
    /// [waits](SessionBuilder::wait) for the cluster.
    pub fn session(&self, ttl: Duration) -> SessionBuilder {
        SessionBuilder {
            client: self.clone(),
            ttl,
            give_up_after: None,
            heal: false,
            from_lease: None,
            wait: false,
        }
    }
}

/// Opens a [`Session`] when awaited. Made by [`Client::session`].
#[derive(Debug, Clone)]
#[must_use = "the session is opened when this is awaited"]
pub struct SessionBuilder {
    pub(super) client: Client,
    ttl: Duration,
    give_up_after: Option<Duration>,
    pub(super) heal: bool,
    from_lease: Option<i64>,
    wait: bool,
}

impl SessionBuilder {
    /// Grants a new lease and puts the keys again when the lease is lost. Default: the session ends with its lease.
    pub fn heal(mut self) -> Self {
        self.heal = true;
        self
    }

    /// Sets how long keepalives continue after the lease's deadline while no member responds. Default: twice the TTL.
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = Some(after);
        self
    }

    /// Takes over the lease with this id instead of granting one: a process that restarts continues with the session it
    /// has [detached](Session::detach), with its keys, and with its leaderships by
    /// [`Election::resume`](crate::recipes::election::Election::resume). The lease has its own TTL; that of the builder
    /// applies to leases granted later, if the session heals. Opening the session fails with
    /// [`ErrorKind::LeaseNotFound`](crate::ErrorKind::LeaseNotFound) if the lease does not exist.
    ///
    /// Take over a lease only after its former owner has ended or has detached it. Locks and leaderships belong to the
    /// lease, so two sessions with the same lease in two clients would own the same locks.
    ///
    /// Healing restores the keys that are put with this session. Keys put before are bound to the lease, but the session
    /// does not know them: put them again. Default: a new lease.
    pub fn from_lease(mut self, lease: impl Into<i64>) -> Self {
        self.from_lease = Some(lease.into());
        self
    }

    /// Waits without a deadline until the lease is granted: temporary errors, such as an unreachable cluster, are
    /// retried. Other errors, such as a denied permission, fail at once. Fails when the client is shut down. Dropping
    /// the future stops waiting. Default: fails after the client's `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }

    /// Requests the first lease of the session.
    fn first_lease(&self) -> ResponseFuture<Lease> {
        let Some(id) = self.from_lease else {
            return self.grant().into_future();
        };
        let adopt = self.client.lease_from(id).revoke_on_drop();
        match self.give_up_after {
            Some(after) => adopt.give_up_after(after).into_future(),
            None => adopt.into_future(),
        }
    }

    pub(super) fn grant(&self) -> Grant<Client> {
        let grant = self.client.lease(self.ttl).keep_alive().revoke_on_drop();
        match self.give_up_after {
            Some(after) => grant.give_up_after(after),
            None => grant,
        }
    }

    async fn open(self) -> Result<Session> {
        let lease = attempt_until_available(self.wait, || self.first_lease()).await?;
        let state = SessionState::new(lease, self.client.holders().stop_signal());
        let (opened, session) = oneshot::channel();
        let client = self.client.clone();
        let started = client.run(move || {
            let (client, heals) = (self.client.clone(), self.heal);
            let builder = Self {
                client: client.for_background(),
                ..self
            };
            let actor = SessionActor::start(builder, state.clone());
            // If the caller no longer waits, the session is dropped here and revokes its lease.
            let _ = opened.send(Session::new(client, state, actor, heals));
        });
        if !started {
            return Err(Error::shut_down());
        }
        session.await.map_err(|_| Error::shut_down())
    }
}

impl IntoFuture for SessionBuilder {
    type Output = Result<Session>;
    type IntoFuture = ResponseFuture<Session>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}
