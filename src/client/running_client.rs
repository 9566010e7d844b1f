//! A running client, and how it shuts down.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use actix::Addr;

use super::endpoint_sync::RunningSync;
use crate::{
    auth::engine::{AuthActor, AuthShutdown},
    balancer::{BalancerActor, messages::BalancerShutdown},
    call::Caller,
    lease::engine::keeper::{KeeperActor, KeeperShutdown},
    request::ClientCore,
    runtime::thread::{Runtime, RuntimeEnd},
    watch::engine::hub::{HubActor, HubShutdown},
};

/// Longest time that a shutdown waits for the revocation of leases.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(3);

/// A running client, shared by all clones of [`Client`](super::Client). Dropping it shuts it down.
pub(crate) struct RunningClient {
    pub(super) caller: Arc<Caller>,
    pub(super) actors: ClientActors,
    pub(super) request_timeout: Duration,
    pub(super) sync: Arc<RunningSync>,
    /// `None` once the client is shutting down.
    runtime: Mutex<Option<Runtime>>,
    /// Set once the client is shutting down.
    end: OnceLock<Option<RuntimeEnd>>,
}

/// The actors that a shutdown stops.
#[derive(Clone)]
pub(crate) struct ClientActors {
    pub(crate) watch_hub: Addr<HubActor>,
    pub(crate) lease_keeper: Addr<KeeperActor>,
    pub(crate) balancer: Addr<BalancerActor>,
    /// `None` if the client has no credentials.
    pub(crate) auth: Option<Addr<AuthActor>>,
    /// Longest time that requests in flight may take to finish.
    pub(crate) shutdown_grace: Duration,
}

impl ClientActors {
    /// Stops the actors, those that need connections first. Sending fails if an actor has stopped already.
    async fn shut_down(&self) {
        let _ = self.watch_hub.send(HubShutdown).await;
        let revoke = KeeperShutdown {
            timeout: REVOKE_TIMEOUT,
        };
        let _ = self.lease_keeper.send(revoke).await;
        let close = BalancerShutdown {
            grace: self.shutdown_grace,
        };
        let _ = self.balancer.send(close).await;
        if let Some(auth) = &self.auth {
            auth.do_send(AuthShutdown);
        }
    }
}

impl RunningClient {
    pub(super) fn new(
        caller: Arc<Caller>,
        actors: ClientActors,
        request_timeout: Duration,
        runtime: Runtime,
    ) -> Self {
        Self {
            caller,
            actors,
            request_timeout,
            sync: Arc::default(),
            runtime: Mutex::new(Some(runtime)),
            end: OnceLock::new(),
        }
    }

    /// Shuts the client down and waits until it is done, also if another clone has started the shutdown. The shutdown
    /// goes on if this future is dropped.
    pub(super) async fn shut_down(&self) {
        if let Some(end) = self.begin_shutdown() {
            end.wait().await;
        }
    }

    /// Starts the shutdown on the actors' thread. Returns its end.
    fn begin_shutdown(&self) -> Option<&RuntimeEnd> {
        let end = self.end.get_or_init(|| {
            let runtime = self.runtime().take();
            let actors = self.actors.clone();
            runtime.map(|runtime| runtime.finish(async move { actors.shut_down().await }))
        });
        end.as_ref()
    }

    fn runtime(&self) -> MutexGuard<'_, Option<Runtime>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        self.begin_shutdown();
    }
}

impl ClientCore for RunningClient {
    fn caller(&self) -> &Caller {
        &self.caller
    }

    fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    fn is_shutting_down(&self) -> bool {
        self.runtime().is_none()
    }

    fn run(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        let runtime = self.runtime();
        runtime.as_ref().is_some_and(|runtime| runtime.run(job))
    }
}
