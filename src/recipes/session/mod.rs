//! A session: a kept lease, the keys bound to it, and a future that resolves when it is lost.
//!
//! With [`heal`](SessionBuilder::heal) a lost lease is no end: a new one is granted and the keys are put again, which
//! is what service registration needs. A key that somebody else has put in the meantime is theirs: it is left alone,
//! and the session tells so.
//!
//! A `SessionActor` follows the lease and heals; it is supervised, so a crash of it costs no healing. It lives on the
//! client's thread: an application that blocks its own still gets its keys back.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let session = etcd.session(Duration::from_secs(5)).heal().await?;
//! session.put("service/a", "10.0.0.1").await?;
//! # Ok(())
//! # }
//! ```

mod handle;
mod healing;

use std::{
    future::IntoFuture,
    pin::Pin,
    time::{Duration, Instant},
};

use actix::Message;
use bytes::Bytes;
use tokio::sync::oneshot;

pub use handle::Session;
pub(super) use handle::Shared;

use crate::{
    client::Client,
    error::{Error, Result},
    lease::{Grant, LeaseLost},
};
use healing::SessionActor;

/// What happened to a session.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum SessionEvent {
    /// The deadline of its lease has passed without an answer; the server may still have it.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// Its lease was lost; a new one is being granted.
    Healing(LeaseLost),
    /// It has a new lease, and its keys are put again.
    Healed {
        /// The new lease.
        lease: i64,
        /// The keys that are not, as somebody else has put them in the meantime.
        taken: Vec<Bytes>,
    },
    /// It is lost. Nothing follows.
    Lost(LeaseLost),
}

/// Makes a [`Session`].
#[derive(Debug, Clone)]
#[must_use = "a session is made when it is awaited"]
pub struct SessionBuilder {
    client: Client,
    ttl: Duration,
    give_up_after: Option<Duration>,
    heal: bool,
}

impl SessionBuilder {
    /// Grants a new lease and puts the keys again when the lease is lost. Default: a lost lease is the end.
    pub fn heal(mut self) -> Self {
        self.heal = true;
        self
    }

    /// How long past its deadline the lease is asked for when nobody answers. Default: twice the time to live.
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = Some(after);
        self
    }

    fn grant(&self) -> Grant<Client> {
        let grant = self.client.lease(self.ttl).keep_alive().revoke_on_drop();
        match self.give_up_after {
            Some(after) => grant.give_up_after(after),
            None => grant,
        }
    }

    async fn open(self) -> Result<Session> {
        let shared = Shared::new(self.grant().await?);
        let (tell, told) = oneshot::channel();
        let client = self.client.clone();
        let started = client.run(move || {
            let (client, heals) = (self.client.clone(), self.heal);
            let actor = SessionActor::start(self, shared.clone());
            // A session nobody waits for any more is dropped with the answer, and ends like any other.
            let _ = tell.send(Session::new(client, shared, actor, heals));
        });
        if !started {
            return Err(Error::shut_down());
        }
        told.await.map_err(|_| Error::shut_down())
    }
}

impl IntoFuture for SessionBuilder {
    type Output = Result<Session>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Session>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl Client {
    /// Opens a session: a kept lease that is revoked when the session is dropped.
    pub fn session(&self, ttl: Duration) -> SessionBuilder {
        SessionBuilder {
            client: self.clone(),
            ttl,
            give_up_after: None,
            heal: false,
        }
    }
}
