//! The public handle of a singleton.

use std::fmt;

use actix::{Actor, Addr, Message, Recipient};
use tokio::sync::{oneshot, watch};
use tokio_stream::{StreamExt, wrappers::WatchStream};

use crate::{
    client::Client,
    error::{Error, Result},
    recipes::subscription::{Subscription, subscribe},
};

/// An actor that runs on one node at a time, possibly this one. Dropping it stops the actor on this node in the
/// background.
#[must_use = "dropping the singleton stops it on this node"]
pub struct Singleton<A: Actor> {
    pub(super) client: Client,
    pub(super) location: watch::Receiver<ActorLocation<A>>,
    /// Dropped to stop the campaign loop.
    pub(super) stop: watch::Sender<()>,
    pub(super) finished: oneshot::Receiver<()>,
}

impl<A: Actor> Singleton<A> {
    /// Returns the address of the actor if it runs on this node and is not stopping.
    pub fn addr(&self) -> Option<Addr<A>> {
        self.location.borrow().addr()
    }

    /// Waits until the actor runs on this node and returns its address. Fails with
    /// [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown) if the client is shut down.
    pub async fn running(&self) -> Result<Addr<A>> {
        let mut location = self.location.clone();
        let here = location.wait_for(|found| found.addr().is_some()).await;
        let addr = here.ok().and_then(|found| found.addr());
        addr.ok_or_else(Error::shut_down)
    }

    /// Waits until the actor does not run on this node. An actor that is stopping still runs.
    pub async fn not_running(&self) {
        let mut location = self.location.clone();
        let is_elsewhere = |found: &ActorLocation<A>| matches!(found, ActorLocation::Elsewhere);
        // An error means that the campaign loop, and the actor with it, has ended.
        let _ = location.wait_for(is_elsewhere).await;
    }

    /// Sends to an actor whether the singleton runs on this node: the current state, then each change. A slow actor gets
    /// the latest state only. The delivery ends when that actor stops, the singleton ends, or the subscription is
    /// dropped.
    pub fn deliver_to(&self, recipient: Recipient<SingletonEvent<A>>) -> Subscription {
        let events = WatchStream::new(self.location.clone()).filter_map(|found| match found {
            ActorLocation::Here(addr) => Some(SingletonEvent::RunsHere(addr)),
            ActorLocation::Stopping => None,
            ActorLocation::Elsewhere => Some(SingletonEvent::RunsElsewhere),
        });
        subscribe(&self.client, events, recipient, None)
    }

    /// Stops the actor on this node, waits until it has ended, and resigns, so that another node can run it.
    pub async fn stop(self) {
        drop(self.stop);
        let _ = self.finished.await;
    }
}

impl<A: Actor> fmt::Debug for Singleton<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Singleton")
            .field("runs_here", &self.addr().is_some())
            .finish_non_exhaustive()
    }
}

/// Whether a singleton runs on this node.
#[derive(Debug, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum SingletonEvent<A: Actor> {
    /// On this node, at this address.
    RunsHere(Addr<A>),
    /// Not on this node: on another one, or on none.
    RunsElsewhere,
}

/// State of the actor on this node.
pub(super) enum ActorLocation<A: Actor> {
    Here(Addr<A>),
    /// On this node, but about to end.
    Stopping,
    /// On another node, or on none.
    Elsewhere,
}

impl<A: Actor> ActorLocation<A> {
    fn addr(&self) -> Option<Addr<A>> {
        match self {
            Self::Here(addr) => Some(addr.clone()),
            Self::Stopping | Self::Elsewhere => None,
        }
    }
}

impl<A: Actor> Clone for ActorLocation<A> {
    fn clone(&self) -> Self {
        match self {
            Self::Here(addr) => Self::Here(addr.clone()),
            Self::Stopping => Self::Stopping,
            Self::Elsewhere => Self::Elsewhere,
        }
    }
}
