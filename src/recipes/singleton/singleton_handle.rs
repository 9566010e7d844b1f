//! The public handle of a singleton.

use std::{fmt, sync::Arc};

use actix::{Actor, Addr, Message, Recipient};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};

use super::singleton_state::{LocalState, SingletonState};
use crate::{
    client::{
        Client,
        subscription::{Subscription, subscribe},
    },
    error::{Error, Result},
};

/// An actor that runs on one node at a time, possibly this one. Clones refer to the same singleton. Dropping the last
/// clone stops the actor on this node in the background.
#[must_use = "dropping the singleton stops it on this node"]
pub struct Singleton<A: Actor> {
    pub(super) client: Client,
    pub(super) state: watch::Receiver<LocalState<A>>,
    /// Set to stop the campaign loop, which also stops when the last clone is dropped.
    pub(super) stop: Arc<watch::Sender<bool>>,
}

impl<A: Actor> Singleton<A> {
    /// Returns whether the actor runs on this node. An actor that is stopping still runs.
    pub fn is_running_here(&self) -> bool {
        self.state.borrow().is_here()
    }

    /// Returns the address of the actor if it runs on this node and is not stopping.
    pub fn addr(&self) -> Option<Addr<A>> {
        self.state.borrow().addr()
    }

    /// Returns the state of the singleton on this node.
    pub fn state(&self) -> SingletonState {
        self.state.borrow().to_public()
    }

    /// Returns the current state and each later one. A slow reader gets the latest state only. Ends after
    /// [`SingletonState::Stopped`].
    pub fn states(&self) -> impl Stream<Item = SingletonState> + Send + Unpin + use<A> {
        WatchStream::new(self.state.clone()).map(|state| state.to_public())
    }

    /// Waits until the actor runs on this node and returns its address. Fails with
    /// [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown) if the singleton is stopped or the client is shut down.
    pub async fn running(&self) -> Result<Addr<A>> {
        let mut state = self.state.clone();
        let decided = |state: &LocalState<A>| state.addr().is_some() || state.is_stopped();
        let here = state.wait_for(decided).await;
        let addr = here.ok().and_then(|state| state.addr());
        addr.ok_or_else(Error::shut_down)
    }

    /// Waits until the actor does not run on this node. An actor that is stopping still runs.
    pub async fn not_running(&self) {
        // An error means that the campaign loop, and the actor with it, has ended.
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| !state.is_here()).await;
    }

    /// Sends to an actor whether the singleton runs on this node: the current state, then each change. A slow actor gets
    /// the latest state only. The delivery ends when that actor stops, the singleton ends, or the subscription is
    /// dropped.
    pub fn deliver_to(&self, recipient: Recipient<SingletonEvent<A>>) -> Subscription {
        let mut was_elsewhere = false;
        let events = WatchStream::new(self.state.clone()).filter_map(move |state| {
            let event = match state {
                LocalState::Running(addr) => SingletonEvent::RunsHere(addr),
                LocalState::Stopping => return None,
                LocalState::Failing(error) => SingletonEvent::CampaignFailed(error),
                LocalState::Waiting | LocalState::Unhealthy | LocalState::Stopped => {
                    SingletonEvent::RunsElsewhere
                }
            };
            let is_elsewhere = matches!(event, SingletonEvent::RunsElsewhere);
            let is_repeated = std::mem::replace(&mut was_elsewhere, is_elsewhere) && is_elsewhere;
            (!is_repeated).then_some(event)
        });
        subscribe(&self.client, events, recipient, None)
    }

    /// Stops the singleton on this node, for all clones: stops the actor, waits until it has ended, and resigns, so that
    /// another node can run it.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let mut state = self.state.clone();
        // An error means that the arbiter of the singleton has ended.
        let _ = state.wait_for(LocalState::is_stopped).await;
    }
}

impl<A: Actor> Clone for Singleton<A> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            state: self.state.clone(),
            stop: self.stop.clone(),
        }
    }
}

impl<A: Actor> fmt::Debug for Singleton<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Singleton")
            .field("state", &self.state())
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
    /// Not on this node, because its campaign failed with this error. The campaign is repeated.
    CampaignFailed(Error),
}
