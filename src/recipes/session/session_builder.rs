//! Opens a session.

use std::{future::IntoFuture, time::Duration};

use tokio::sync::oneshot;

use super::{Session, SessionState, actor::SessionActor};
use crate::{
    client::Client,
    error::{Error, Result},
    lease::Grant,
    request::ResponseFuture,
};

impl Client {
    /// Opens a session: a lease that is kept alive, and revoked when the session is dropped. Awaiting the builder
    /// fails if the lease cannot be granted within the client's `request_timeout`.
    pub fn session(&self, ttl: Duration) -> SessionBuilder {
        SessionBuilder {
            client: self.clone(),
            ttl,
            give_up_after: None,
            heal: false,
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

    pub(super) fn grant(&self) -> Grant<Client> {
        let grant = self.client.lease(self.ttl).keep_alive().revoke_on_drop();
        match self.give_up_after {
            Some(after) => grant.give_up_after(after),
            None => grant,
        }
    }

    async fn open(self) -> Result<Session> {
        let lease = self.grant().await?;
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
