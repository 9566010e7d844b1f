//! The client: the handle that applications hold, its options, and its connections to the cluster.

mod advertised_endpoints;
mod builder;
mod client_lifetime;
mod connectivity_changes;
pub(crate) mod endpoint_sync;
mod extensions;
mod grpc_service;
mod requests;
mod running_client;
mod startup;
pub(crate) mod subscription;

pub use crate::connection::Liveness;
pub use builder::ClientBuilder;
pub use connectivity_changes::{ConnectivityChanges, ConnectivityStream, SubscribeConnectivity};
pub use grpc_service::{GrpcService, ResponseBody};
pub use subscription::Subscription;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use self::{
    builder::parse_endpoints, client_lifetime::ClientLifetime, running_client::RunningClient,
};
use crate::{
    balancer::messages::{EndpointSource, UpdateEndpoints},
    call::{Caller, deadline_in},
    connection::Connection,
    error::Error,
    lease::engine::lease_service::{LeaseClient, LeaseService},
    request::{ClientCore, ClientHandle, ClientView},
    runtime::holders::Holders,
    transport::Endpoint,
    watch::engine::watch_service::{WatchClient, WatchService},
};

/// A client for one etcd cluster.
///
/// Clones are cheap and share connections, watches and leases. A client can be used from any number of threads and
/// tasks, with actix or with plain tokio. The tokio runtime must have its timer enabled, as `#[tokio::main]`,
/// `#[actix_rt::main]` and `Builder::enable_all` do: [`connect`](Self::connect) fails without it, and later requests
/// panic.
///
/// # How a client ends
/// [`shutdown`](Self::shutdown) ends it in order, and waits until that is done. So does the drop of the last handle: of
/// the last clone, session, guard, lease, registration or subscription. That drop blocks its thread until leases are
/// revoked and locks are released, for at most [`drop_grace`](ClientBuilder::drop_grace) (default: 1 s), and only if
/// there are any. So a program that returns from `main` leaves no lock behind. This does not work
/// - for a client [on the current arbiter](ClientBuilder::on_current_arbiter), which cannot run while its thread is
///   blocked,
/// - if the process is ended in another way, for example by `std::process::exit`: then call `shutdown` before.
#[derive(Clone)]
pub struct Client {
    running: Arc<RunningClient>,
    /// `None` in background work, which does not keep the client running.
    lifetime: Option<Arc<ClientLifetime>>,
    view: ClientView,
}

impl Client {
    /// Returns the options of a client for the cluster with these endpoints, written as [`Endpoint`] describes. One
    /// member is enough to connect; list several, so that the client can connect while a member is down.
    ///
    /// ```no_run
    /// # async fn example() -> actix_etcd::Result<()> {
    /// use actix_etcd::Client;
    ///
    /// let etcd = Client::builder(["http://127.0.0.1:2379"]).connect().await?;
    /// etcd.put("greeting", "hello").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> ClientBuilder {
        ClientBuilder::new(endpoints)
    }

    /// Connects with the default options. See [`ClientBuilder::connect`].
    pub async fn connect<E: Into<String>>(
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<Self, Error> {
        Self::builder(endpoints).connect().await
    }

    /// Waits until a member accepts requests. Fails with [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable)
    /// after the timeout; the error lists every endpoint with its last failure. The kind is
    /// [`ErrorKind::ClusterChanged`](crate::ErrorKind::ClusterChanged) if every endpoint leads to another cluster, and
    /// [`ErrorKind::MixedClusters`](crate::ErrorKind::MixedClusters) if the endpoints lead to different ones.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<(), Error> {
        self.caller().wait_ready(deadline_in(timeout)).await
    }

    /// Returns the id of the cluster, or `None` until the endpoints have reported it. It changes only with
    /// [`ClientBuilder::follow_cluster_change`].
    pub fn cluster_id(&self) -> Option<u64> {
        Some(self.caller().context.cluster.get()).filter(|id| *id != 0)
    }

    /// Returns the endpoints in use, in normal form: `http://host:port`.
    pub fn endpoints(&self) -> Vec<String> {
        let set = self.caller().ready_set.load();
        set.views
            .iter()
            .map(|member| member.endpoint.as_str().to_owned())
            .collect()
    }

    /// Replaces the endpoints. Connections to endpoints that are not in the list close once their requests in flight
    /// have finished.
    ///
    /// Fails with [`ErrorKind::InvalidEndpoint`](crate::ErrorKind::InvalidEndpoint) or
    /// [`ErrorKind::NoEndpoints`](crate::ErrorKind::NoEndpoints), and then changes nothing, if an endpoint is not valid
    /// or the list is empty.
    pub async fn set_endpoints<E: Into<String>>(
        &self,
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<(), Error> {
        let texts: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        let endpoints = parse_endpoints(&texts, &self.caller().context.dial.tls)?;
        update_endpoints(self.caller(), endpoints, EndpointSource::User).await
    }

    /// Shuts the client down, with all its clones, in this order:
    /// 1. Work under locks and leaderships ends: `lost()` of their guards resolves, [`Mutex::scope`] cancels its work,
    ///    actors receive the last event of their claims, and the actors of singletons stop. Requests for locks and
    ///    campaigns fail. This phase lasts until every guard is dropped and every singleton has ended, for at most
    ///    [`shutdown_grace`](ClientBuilder::shutdown_grace), or the longest
    ///    [`margin`](crate::recipes::singleton::SingletonBuilder::margin) of the singletons that run here. Leases are
    ///    kept alive meanwhile, and requests work.
    /// 2. The keys of locks and leaderships are deleted.
    /// 3. Watches end, and leases with `revoke_on_drop` are revoked. Together with the second phase, this takes at most
    ///    3 s. Other leases stay until their TTL ends.
    /// 4. Requests in flight have [`shutdown_grace`](ClientBuilder::shutdown_grace) to finish. Then connections close,
    ///    and the actors and their thread stop.
    ///
    /// If a guard is not dropped, or a singleton does not end, in the first phase, its lease is kept alive no longer,
    /// but not revoked either: no other session gets the lock before the TTL ends. So drop guards before you call this.
    ///
    /// [`Mutex::scope`]: crate::recipes::mutex::Mutex::scope
    ///
    /// Later requests fail with [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown). If several clones call `shutdown`,
    /// every call returns when the shutdown is complete. A shutdown that has begun goes on in the background if this
    /// future is dropped.
    pub async fn shutdown(self) {
        self.running.shut_down().await;
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.running.caller
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.running.request_options.timeout
    }

    /// Returns the prefix of the markers of writes that are applied exactly once.
    pub(crate) fn marker_prefix(&self) -> &Bytes {
        &self.running.request_options.marker_prefix
    }

    #[cfg(feature = "test-faults")]
    pub(crate) fn actors(&self) -> &running_client::ClientActors {
        &self.running.actors
    }

    /// Returns a client for background work. It does not keep the client running.
    pub(crate) fn for_background(&self) -> Self {
        Self {
            running: self.running.clone(),
            lifetime: None,
            view: self.view.clone(),
        }
    }

    /// Returns this client with another view of the cluster.
    pub(crate) fn with_view(&self, view: ClientView) -> Self {
        Self {
            view,
            ..self.clone()
        }
    }

    pub(crate) fn holders(&self) -> &Arc<Holders> {
        &self.running.holders
    }

    /// Runs a closure on the actors' thread. Returns `false` if that thread has ended or is about to.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.running.run(Box::new(job))
    }

    /// Returns a connection that accepts requests, chosen by the balance policy. Waits for one up to the request
    /// timeout.
    pub(crate) async fn ready_connection(&self) -> Result<Arc<Connection>, Error> {
        let deadline = deadline_in(self.request_timeout());
        self.caller().ready_connection(deadline).await
    }

    /// Logs in, if the client has credentials and no token yet.
    async fn log_in(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = deadline_in(timeout);
        self.caller().tokens.current(deadline).await.map(drop)
    }
}

/// Replaces the endpoints. After this, [`Client::endpoints`] returns them.
async fn update_endpoints(
    caller: &Caller,
    endpoints: Vec<Endpoint>,
    source: EndpointSource,
) -> Result<(), Error> {
    let update = UpdateEndpoints { endpoints, source };
    let updated = caller.balancer.send(update).await;
    updated.map_err(|_| Error::shut_down())
}

impl ClientHandle for Client {
    fn caller(&self) -> &Caller {
        &self.running.caller
    }

    fn request_timeout(&self) -> Duration {
        self.running.request_options.timeout
    }

    fn view(&self) -> &ClientView {
        &self.view
    }
}

impl LeaseClient for Client {
    fn leases(&self) -> LeaseService {
        let core: Arc<dyn ClientCore> = match &self.lifetime {
            Some(lifetime) => lifetime.clone(),
            None => self.running.clone(),
        };
        LeaseService {
            core,
            keeper: self.running.actors.lease_keeper.clone(),
            view: self.view.clone(),
        }
    }
}

impl WatchClient for Client {
    fn watches(&self) -> WatchService {
        WatchService {
            hub: self.running.actors.watch_hub.clone(),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.endpoints())
            .finish_non_exhaustive()
    }
}
