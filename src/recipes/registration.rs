//! An instance of a service is found by others for as long as it lives.
//!
//! It is written down [as the Go client does](super::discovery), bound to a session that heals: a lease that is lost in
//! an outage is granted again, and the instance is listed again. Who dies is not listed any more when the time to live
//! is over; who unregisters, at once. The key is the last one's who registers under it: the one before is told, and
//! never overwrites it.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let registration = etcd
//!     .register("services/web", "10.0.0.1:80")
//!     .metadata("zone a")
//!     .ttl(Duration::from_secs(5))
//!     .await?;
//! // … it serves …
//! registration.unregister().await?;
//! # Ok(())
//! # }
//! ```
//!
//! As a message to the actor [`Etcd`](crate::Etcd): [`register`]`("services/web", "10.0.0.1:80")`. Sent with `do_send`,
//! the instance is registered until the client is shut down or the arbiter of that actor ends.

use std::{fmt, future::IntoFuture, time::Duration, time::Instant};

use actix::{Message, Recipient};
use actix_rt::Arbiter;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

pub use super::observation::Subscription;
use super::{
    naming,
    observation::deliver,
    registrar::{Registrar, State, Unregister, Update},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    lease::LeaseLost,
    request::{EtcdRequest, IntoBytes, ResponseFuture},
};

/// Default time to live.
const TTL: Duration = Duration::from_secs(10);

/// What happened to a registration.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum RegistrationEvent {
    /// The deadline of its lease has passed without an answer: it may not be listed any more.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// Its lease was lost: it is not listed, and being registered again.
    Lapsed(LeaseLost),
    /// It is listed again.
    Restored {
        /// The lease it is bound to now.
        lease: i64,
    },
    /// Somebody else has registered under its key, or deleted it: it is over. Nothing follows.
    Taken,
    /// Nothing follows, and this is why.
    Ended(LeaseLost),
}

/// Registers an instance of a service: awaiting it gives a [`Registration`]. Free (`Register<()>`) it is a message to
/// the actor [`Etcd`](crate::Etcd).
#[derive(Debug, Clone)]
#[must_use = "nothing is registered before this is awaited"]
pub struct Register<C = ()> {
    target: Bytes,
    addr: String,
    metadata: Value,
    id: Option<Bytes>,
    ttl: Duration,
    client: C,
}

/// An instance of the service of that name, to be registered by a client yet to be named.
pub fn register(target: impl IntoBytes, addr: impl Into<String>) -> Register {
    Register {
        target: target.into_bytes(),
        addr: addr.into(),
        metadata: Value::Null,
        id: None,
        ttl: TTL,
        client: (),
    }
}

impl Client {
    /// Registers an instance of the service of that name, at this address, under the key `<target>/<address>`.
    pub fn register(&self, target: impl IntoBytes, addr: impl Into<String>) -> Register<Client> {
        register(target, addr).on(self)
    }
}

impl<C> Register<C> {
    /// What else it says of itself: text, numbers, or whatever JSON can say. Default: null.
    pub fn metadata(mut self, metadata: impl Into<Value>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// The last part of its key, after `<target>/`. Whoever registers under the same key replaces it. Default: its
    /// address.
    pub fn id(mut self, id: impl IntoBytes) -> Self {
        self.id = Some(id.into_bytes());
        self
    }

    /// How long after its death it is listed. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }
}

impl Register {
    /// Binds it to a client: awaiting it registers the instance.
    pub fn on(self, client: &Client) -> Register<Client> {
        Register {
            target: self.target,
            addr: self.addr,
            metadata: self.metadata,
            id: self.id,
            ttl: self.ttl,
            client: client.clone(),
        }
    }
}

impl Register<Client> {
    async fn perform(self) -> Result<Registration> {
        if self.addr.is_empty() {
            return Err(Error::invalid("the address is empty"));
        }
        let id = self.id.unwrap_or_else(|| self.addr.clone().into());
        if id.is_empty() {
            return Err(Error::invalid("the id is empty"));
        }
        let key = Bytes::from([naming::prefix(&self.target)?, id].concat());
        let value = Bytes::from(naming::write(&self.addr, &self.metadata));
        let session = self.client.session(self.ttl).heal().await?;
        let news = session.events();
        let lease = session.lease().ok_or_else(over)?;
        // Where this fails, dropping the session leaves nothing behind.
        let first = self.client.put(key.clone(), value.clone());
        first.lease(lease).await?;
        let registrar = Registrar::new(session, key.clone(), value, lease);
        let (update, updates) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let registration = Registration {
            key,
            events: registrar.events(),
            state: registrar.state(),
            update,
            end,
            client: self.client.clone(),
        };
        let started = self.client.run(move || {
            actix_rt::spawn(registrar.run(news, updates, ended));
        });
        if !started {
            return Err(Error::shut_down());
        }
        Ok(registration)
    }
}

/// Fails with [`ErrorKind::InvalidArgument`] where the name, the address or the id is empty, where the cluster can't be
/// asked, and where the user may not write the key. To be listed again, and told who takes the key, the user must be
/// allowed to read it, too.
impl IntoFuture for Register<Client> {
    type Output = Result<Registration>;
    type IntoFuture = ResponseFuture<Registration>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.perform())
    }
}

impl Message for Register {
    type Result = Result<Registration>;
}

impl EtcdRequest<Client> for Register {
    type Response = Registration;

    fn name(&self) -> &'static str {
        "Register"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Registration> {
        self.on(client).into_future()
    }

    fn discard(self, registration: Registration) {
        registration.detach();
    }
}

/// An instance that is registered. Dropped, it is unregistered in the background.
#[must_use = "an instance whose registration is dropped is unregistered"]
pub struct Registration {
    key: Bytes,
    /// Never read, only followed by others.
    events: broadcast::Receiver<RegistrationEvent>,
    state: watch::Receiver<State>,
    update: mpsc::Sender<Update>,
    end: oneshot::Sender<Unregister>,
    client: Client,
}

impl Registration {
    /// The key it is registered under.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// The lease its key is bound to; another one after it was restored. `None` once it has ended.
    pub fn lease(&self) -> Option<i64> {
        self.state.borrow().lease
    }

    /// Says something else of itself, under the same key. While it is being registered again, this waits. Fails with
    /// [`ErrorKind::SessionLost`] once it is over: somebody else's key is never overwritten.
    pub async fn update(&self, addr: &str, metadata: impl Into<Value>) -> Result<()> {
        if addr.is_empty() {
            return Err(Error::invalid("the address is empty"));
        }
        let value = naming::write(addr, &metadata.into()).into();
        let (done, told) = oneshot::channel();
        let sent = self.update.send(Update { value, done }).await;
        sent.map_err(|_| over())?;
        told.await.map_err(|_| over())?
    }

    /// What happens to it from now on; of one that is over, that it is. Ends with the last event. A reader that is far
    /// behind misses the oldest ones.
    pub fn events(&self) -> impl Stream<Item = RegistrationEvent> + Send + Unpin + use<> {
        let events = BroadcastStream::new(self.events.resubscribe()).filter_map(Result::ok);
        // Looked at after that: what ended before is told here, what ends later is told there.
        let over = self.state.borrow().ended.clone();
        let follow = if over.is_some() { 0 } else { usize::MAX };
        tokio_stream::iter(over).chain(events.take(follow))
    }

    /// Sends what happens to it to an actor, the next event when the last was handled, until that actor or the
    /// registration ends, or the handle is dropped.
    pub fn deliver_to(&self, recipient: Recipient<RegistrationEvent>) -> Subscription {
        let last = RegistrationEvent::Ended(LeaseLost::Shutdown);
        deliver(&self.client, self.events(), recipient, Some(last))
    }

    /// Takes it off the list, and waits for it.
    pub async fn unregister(self) -> Result<()> {
        let (done, told) = oneshot::channel();
        // Where nobody is asked any more, it is over.
        if self.end.send(done).is_err() {
            return Ok(());
        }
        told.await.map_err(|_| Error::shut_down())?
    }

    /// Lets it be registered until the client is shut down or the actix arbiter this is called on ends; where there is
    /// none, as on plain tokio, until the client is shut down.
    pub fn detach(self) {
        let client = self.client.clone();
        let kept = async move {
            let mut state = self.state.clone();
            // An error: the client has ended.
            let _ = state.wait_for(|state| state.ended.is_some()).await;
            drop(self);
        };
        // A task on the client's thread would keep the client, and the lease, when the application's system has stopped.
        match Arbiter::try_current() {
            Some(arbiter) => drop(arbiter.spawn(kept)),
            None => drop(client.run(move || drop(actix_rt::spawn(kept)))),
        }
    }
}

fn over() -> Error {
    Error::new(
        ErrorKind::SessionLost,
        Outcome::NotSent,
        "the instance is not registered any more",
    )
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .field("lease", &self.lease())
            .finish_non_exhaustive()
    }
}
