//! A running client, and how it shuts down.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix::Addr;
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    endpoint_sync::RunningSync,
    extensions::{ClearOnDrop, Extensions},
};
use crate::{
    auth::engine::{AuthActor, AuthShutdown},
    balancer::{BalancerActor, messages::BalancerShutdown},
    call::Caller,
    lease::engine::keeper::{KeeperActor, KeeperShutdown},
    request::ClientCore,
    runtime::{
        holders::Holders,
        thread::{Runtime, RuntimeEnd},
    },
    watch::engine::hub::{HubActor, HubShutdown},
};

/// Longest time that a shutdown waits for the deletion of keys and the revocation of leases.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// The part of it after which leases are revoked although keys are not deleted. That deletes the keys as well.
const DELETE_TIMEOUT: Duration = Duration::from_secs(1);

/// A running client, shared by all clones of [`Client`](super::Client). Dropping it shuts it down.
pub(crate) struct RunningClient {
    pub(super) caller: Arc<Caller>,
    pub(super) actors: ClientActors,
    pub(super) request_options: RequestOptions,
    pub(super) sync: Arc<RunningSync>,
    pub(super) holders: Arc<Holders>,
    pub(super) extensions: Arc<Extensions>,
    runtime: Runtime,
    /// Set once the client is shutting down.
    end: OnceLock<RuntimeEnd>,
}

/// Options of requests that have none of their own.
#[derive(Debug, Clone)]
pub(crate) struct RequestOptions {
    pub(super) timeout: Duration,
    /// Prefix of the markers of writes that are applied exactly once.
    pub(super) marker_prefix: Bytes,
}

/// The actors that a shutdown stops.
#[derive(Clone)]
pub(crate) struct ClientActors {
    pub(crate) watch_hub: Addr<HubActor>,
    pub(crate) lease_keeper: Addr<KeeperActor>,
    pub(crate) balancer: Addr<BalancerActor>,
    /// `None` if the client has no credentials.
    pub(crate) auth: Option<Addr<AuthActor>>,
    /// Longest time that requests in flight, and work under locks, may take to finish.
    pub(crate) shutdown_grace: Duration,
}

impl ClientActors {
    /// Ends the work under locks, then deletes the keys of locks and revokes leases. Leases of work that has not
    /// stopped are left to expire.
    async fn release(&self, holders: &Holders) {
        let still_held = holders.stopped(self.shutdown_grace).await;
        if !still_held.is_empty() {
            tracing::warn!(
                leases = ?still_held,
                "work under a lock did not stop during shutdown; its lease is left to expire"
            );
        }
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        holders.released(DELETE_TIMEOUT).await;
        self.end_streams(deadline, still_held).await;
    }

    /// Stops the actors that need connections. Sending fails if an actor has stopped already.
    async fn end_streams(&self, deadline: Instant, keep: HashSet<i64>) {
        let _ = self.watch_hub.send(HubShutdown).await;
        let timeout = deadline.saturating_duration_since(Instant::now());
        let revoke = KeeperShutdown { timeout, keep };
        let _ = self.lease_keeper.send(revoke).await;
    }

    /// Closes the connections.
    async fn close(&self) {
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
        request_options: RequestOptions,
        runtime: Runtime,
    ) -> Self {
        Self {
            caller,
            actors,
            request_options,
            sync: Arc::default(),
            holders: Arc::default(),
            extensions: Arc::new(Extensions::new()),
            runtime,
            end: OnceLock::new(),
        }
    }

    /// Shuts the client down and waits until it is done, also if another clone has started the shutdown. The shutdown
    /// goes on if this future is dropped.
    pub(super) async fn shut_down(&self) {
        self.begin_shutdown().wait().await;
    }

    /// Shuts the client down. Blocks for at most `limit` until its leases are revoked and its locks are released, if it
    /// has any.
    pub(super) fn shut_down_blocking(&self, limit: Duration) {
        let has_pending_releases = self.holders.has_pending_releases();
        let end = self.begin_shutdown();
        if has_pending_releases {
            end.block_until_released(limit);
        }
    }

    /// Starts the shutdown on the actors' thread. Returns its end.
    fn begin_shutdown(&self) -> &RuntimeEnd {
        self.end.get_or_init(|| {
            self.holders.begin_stop();
            let (releasing, closing) = (self.actors.clone(), self.actors.clone());
            let holders = self.holders.clone();
            // Extensions may hold leases, which are revoked before the connections close.
            let extensions = ClearOnDrop(self.extensions.clone());
            self.runtime.finish(
                async move || releasing.release(&holders).await,
                async move || {
                    closing.close().await;
                    drop(extensions);
                },
            )
        })
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
        self.request_options.timeout
    }

    fn holders(&self) -> &Arc<Holders> {
        &self.holders
    }

    fn run(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        self.runtime.run(job)
    }
}
