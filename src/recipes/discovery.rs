//! Who offers a service now: a live list of its instances, whatever happens to the members of the cluster.
//!
//! The layout of the keys is that of the Go client's `naming/endpoints` package: what Go programs register is found
//! here, and [what is registered here](super::registration) is found by them and by gRPC's etcd resolver. Keys whose
//! value is no instance are left out, with a warning in the log.
//!
//! During an outage the list stays as it was; after it, it is what a fresh read gives, even where the history in between
//! was compacted away.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::recipes::discovery::DiscoveryEvent;
//!
//! let mut web = etcd.discover("services/web").await?;
//! println!("{} instances now", web.instances().len());
//! while let Some(event) = web.next().await {
//!     match event {
//!         DiscoveryEvent::Changed(change) => {
//!             for instance in &change.joined {
//!                 println!("{} has joined", instance.addr);
//!             }
//!         }
//!         DiscoveryEvent::Ended(error) => println!("over: {error}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! To an actor: `etcd.discover("services/web").deliver_to(recipient)`, or as a message to the actor
//! [`Etcd`](crate::Etcd): [`discover`]`("services/web").deliver_to(recipient)`.

use std::{
    fmt,
    future::IntoFuture,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio::sync::watch;
use tokio_stream::{Stream, wrappers::WatchStream};

use super::{
    follow::{Follow, Seen},
    naming,
    observation::deliver,
    roster::Roster,
};
pub use super::{
    naming::Instance,
    observation::Subscription,
    roster::{Change, Instances},
    subscribe::SubscribeInstances,
};
use crate::{
    client::Client,
    error::{Error, Result},
    request::{IntoBytes, ResponseFuture},
};

/// What is told of the instances of a service.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum DiscoveryEvent {
    /// These are the instances now. The first one tells all there are, also where there are none.
    Changed(Change),
    /// Nothing follows, and this is why.
    Ended(Error),
}

/// Asks for the instances of a service: awaiting it gives a [`Discovery`], [`deliver_to`](Discover::deliver_to) delivers
/// them to an actor. Free (`Discover<()>`) it becomes a message to the actor [`Etcd`](crate::Etcd) with
/// [`to`](Discover::to).
#[derive(Debug, Clone)]
#[must_use = "nothing is discovered before this is awaited"]
pub struct Discover<C = ()> {
    target: Bytes,
    client: C,
}

/// The instances of the service of that name, for a client yet to be named.
pub fn discover(target: impl IntoBytes) -> Discover {
    Discover {
        target: target.into_bytes(),
        client: (),
    }
}

impl Client {
    /// The instances of the service of that name, now and from now on: those registered under `<target>/`.
    pub fn discover(&self, target: impl IntoBytes) -> Discover<Client> {
        discover(target).on(self)
    }
}

impl Discover {
    /// Binds it to a client.
    pub fn on(self, client: &Client) -> Discover<Client> {
        Discover {
            target: self.target,
            client: client.clone(),
        }
    }

    /// A message to the actor [`Etcd`](crate::Etcd): tell this actor of the instances.
    pub fn deliver_to(self, recipient: Recipient<DiscoveryEvent>) -> SubscribeInstances {
        SubscribeInstances {
            discover: self,
            recipient,
        }
    }
}

impl Discover<Client> {
    /// Sends every change to an actor, the next one when the last was handled, until that actor or the client ends, or
    /// the handle is dropped. A slow actor is told the sum of what it has missed. Fails as awaiting it does.
    pub async fn deliver_to(self, recipient: Recipient<DiscoveryEvent>) -> Result<Subscription> {
        let client = self.client.clone();
        let last = DiscoveryEvent::Ended(Error::shut_down());
        let found = self.open().await?;
        Ok(deliver(&client, found, recipient, Some(last)))
    }

    async fn open(self) -> Result<Discovery> {
        let mut follow = Follow::prefix(self.client.clone(), naming::prefix(&self.target)?);
        let mut roster = Roster::default();
        while roster.revision() == 0 {
            if let Some(seen) = follow.step().await? {
                apply(&mut roster, &seen);
            }
        }
        let (state, live) = watch::channel(State {
            instances: Arc::new(roster.instances()),
            ended: None,
        });
        // On the client's thread: the list is live while the application blocks its own.
        let started = self.client.run(move || {
            actix_rt::spawn(async move {
                tokio::select! {
                    () = state.closed() => {}
                    () = keep(&mut follow, &mut roster, &state) => {}
                }
            });
        });
        if !started {
            return Err(Error::shut_down());
        }
        Ok(Discovery {
            target: self.target,
            changes: WatchStream::new(live.clone()),
            live,
            told: None,
            over: false,
        })
    }
}

/// Fails where the cluster can't be asked within the client's `request_timeout`, and where the user may not read the
/// keys. Later outages are waited out.
impl IntoFuture for Discover<Client> {
    type Output = Result<Discovery>;
    type IntoFuture = ResponseFuture<Discovery>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

#[derive(Clone)]
struct State {
    instances: Arc<Instances>,
    ended: Option<Error>,
}

fn apply(roster: &mut Roster, seen: &Seen) {
    match seen {
        Seen::All(found) => roster.replace(found.header.revision, &found.kvs),
        Seen::Events(events) => roster.apply(events.revision(), events),
    }
}

async fn keep(follow: &mut Follow, roster: &mut Roster, state: &watch::Sender<State>) {
    loop {
        match follow.next().await {
            Ok(seen) => {
                apply(roster, &seen);
                let instances = Arc::new(roster.instances());
                state.send_modify(|state| state.instances = instances);
            }
            Err(error) => {
                state.send_modify(|state| state.ended = Some(error));
                return;
            }
        }
    }
}

/// The instances of a service, kept up to date in the background while this is held.
///
/// A stream of what changes, too. Who reads it slowly is told the sum of what happened meanwhile, so nothing piles up.
/// A clone begins anew: its first event tells all instances.
#[must_use = "nothing is discovered any more when this is dropped"]
pub struct Discovery {
    target: Bytes,
    live: watch::Receiver<State>,
    changes: WatchStream<State>,
    told: Option<Arc<Instances>>,
    over: bool,
}

impl Discovery {
    /// The instances as they are known now.
    pub fn instances(&self) -> Arc<Instances> {
        self.live.borrow().instances.clone()
    }

    /// The next event: first all instances, then every change; `None` after [`DiscoveryEvent::Ended`].
    pub async fn next(&mut self) -> Option<DiscoveryEvent> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<DiscoveryEvent>> {
        while !self.over {
            let state = ready!(Pin::new(&mut self.changes).poll_next(cx));
            // No state: what kept it has gone with the client's thread.
            let ended = state.as_ref().is_none_or(|state| state.ended.is_some());
            if let Some(change) = state.as_ref().and_then(|state| self.news(&state.instances)) {
                if ended {
                    // Both in one: the end is told next.
                    self.changes = WatchStream::new(self.live.clone());
                }
                return Poll::Ready(Some(DiscoveryEvent::Changed(change)));
            }
            if ended {
                self.over = true;
                let why = state.and_then(|state| state.ended);
                let why = why.unwrap_or_else(Error::shut_down);
                return Poll::Ready(Some(DiscoveryEvent::Ended(why)));
            }
        }
        Poll::Ready(None)
    }

    fn news(&mut self, now: &Arc<Instances>) -> Option<Change> {
        let change = match &self.told {
            Some(told) => Change::between(told, now)?,
            None => Change::first(now),
        };
        self.told = Some(now.clone());
        Some(change)
    }
}

impl Clone for Discovery {
    fn clone(&self) -> Self {
        Self {
            target: self.target.clone(),
            changes: WatchStream::new(self.live.clone()),
            live: self.live.clone(),
            told: None,
            over: false,
        }
    }
}

impl Stream for Discovery {
    type Item = DiscoveryEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<DiscoveryEvent>> {
        self.poll(cx)
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery")
            .field("target", &self.target)
            .field("instances", &self.instances())
            .finish_non_exhaustive()
    }
}
