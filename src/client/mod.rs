//! The handle applications hold.

mod builder;
mod connectivity;
pub(crate) mod endpoint_sync;
mod grpc_service;
mod requests;

pub use builder::ClientBuilder;
pub use connectivity::{ConnectivityChanges, ConnectivityStream, SubscribeConnectivity};
pub use grpc_service::{GrpcService, ResponseBody};

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix::Addr;
use tokio::sync::OnceCell;

use self::{builder::parse_endpoints, endpoint_sync::keep_in_sync};
use crate::{
    auth::{
        Login,
        engine::{self as auth, actor::AuthActor},
    },
    balancer::{
        BalancerActor, ReadySetCell,
        messages::{BalancerShutdown, EndpointSource, UpdateEndpoints},
    },
    call::{Caller, deadline_in, tokens::Tokens},
    connection::{
        ClusterId, Connection, ConnectionContext,
        token::{TokenCell, header_value},
    },
    error::Error,
    lease::engine::{
        keeper::{KeeperActor, KeeperShutdown},
        service::{LeaseClient, LeaseService},
    },
    request::{ClientCore, ClientHandle},
    retry::{actor::RetryActor, budget::RetryBudget},
    runtime::thread::Runtime,
    transport::Endpoint,
    watch::engine::{
        hub::{HubActor, HubShutdown},
        service::{WatchClient, WatchService},
    },
};

/// A client of one etcd cluster.
///
/// Clones are cheap and share everything. It can be used from any number of threads and tasks, on actix or on plain
/// tokio (with its timer and I/O enabled). When the last clone is dropped, its connections are closed and its thread
/// ends; [`shutdown`](Self::shutdown) does the same and waits for it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// How long an ending client waits for the leases it was asked to revoke.
const END_LEASES: KeeperShutdown = KeeperShutdown {
    timeout: Duration::from_secs(3),
};

pub(crate) struct Inner {
    caller: Arc<Caller>,
    watches: Addr<HubActor>,
    leases: Addr<KeeperActor>,
    /// Renews tokens, if the client has credentials.
    auth: Option<Addr<AuthActor>>,
    request_timeout: Duration,
    shutdown_grace: Duration,
    /// Taken by who ends the client.
    runtime: Mutex<Option<Runtime>>,
    ended: OnceCell<()>,
}

impl Client {
    /// Options for a client of the cluster behind these endpoints.
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

    /// Connects with the default options.
    pub async fn connect<E: Into<String>>(
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<Self, Error> {
        Self::builder(endpoints).connect().await
    }

    pub(crate) async fn start(
        options: ClientBuilder,
        endpoints: Vec<Endpoint>,
    ) -> Result<Self, Error> {
        let runtime = if options.on_current_arbiter {
            Runtime::current_arbiter()?
        } else {
            Runtime::own_thread()?
        };
        let ready = Arc::new(ReadySetCell::default());
        let token = Arc::new(TokenCell::default());
        let provider = match options.login {
            Login::Anonymous => None,
            Login::Token(value) => {
                token.replace(Some(header_value(&value)?));
                None
            }
            Login::Provided(provider) => Some(provider),
        };
        let shared = Arc::new(ConnectionContext {
            dial: options.dial,
            token: token.clone(),
            cluster: ClusterId::new(options.follow_cluster),
            members: ready.clone(),
            follow_leader: options.policy.follows_leader(),
        });
        let budget = RetryBudget::new(options.budget, std::time::Instant::now());
        let (policy, retry_policy) = (options.policy, options.retry);
        let patience = options.request_timeout;
        let token_lifetime = options.token_lifetime;
        let (caller, auth) = runtime
            .call(move || {
                let retries = RetryActor::start();
                let balancer = BalancerActor::start(
                    shared.clone(),
                    ready.clone(),
                    policy.clone(),
                    retries.clone().recipient(),
                );
                let caller = Caller {
                    ready,
                    shared,
                    policy,
                    retry_policy,
                    budget: Arc::new(budget),
                    // To log in takes no token.
                    tokens: Tokens::fixed(Arc::default()),
                    only: None,
                    balancer,
                    retries,
                };
                let (tokens, auth) = match provider {
                    None => (Tokens::fixed(token), None),
                    Some(provider) => {
                        let actor = AuthActor::start(
                            token.clone(),
                            provider,
                            caller.clone(),
                            patience,
                            token_lifetime,
                        );
                        let renewer = actor.clone().recipient();
                        (Tokens::renewed_by(token, renewer), Some(actor))
                    }
                };
                (Caller { tokens, ..caller }, auth)
            })
            .await?;
        // Once this is handled, the client knows its endpoints, whatever it is asked first.
        let update = UpdateEndpoints {
            endpoints,
            source: EndpointSource::User,
        };
        let told = caller.balancer.send(update).await;
        told.map_err(|_| Error::shut_down())?;
        let caller = Arc::new(caller);
        let (watching, keeping) = (caller.clone(), caller.clone());
        let per_stream = options.watches_per_stream;
        let (watches, leases) = runtime
            .call(move || {
                (
                    HubActor::start(watching, per_stream),
                    KeeperActor::start(keeping),
                )
            })
            .await?;
        let inner = Arc::new(Inner {
            caller,
            watches,
            leases,
            auth,
            request_timeout: options.request_timeout,
            shutdown_grace: options.shutdown_grace,
            runtime: Mutex::new(None),
            ended: OnceCell::new(),
        });
        if let Some(interval) = options.auto_sync {
            let client = Arc::downgrade(&inner);
            runtime.run(move || drop(actix_rt::spawn(keep_in_sync(client, interval))));
        }
        *inner.runtime() = Some(runtime);
        Ok(Self { inner })
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.inner.caller
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.inner.request_timeout
    }

    #[cfg(feature = "test-faults")]
    pub(crate) fn actors(&self) -> ClientActors<'_> {
        ClientActors {
            watch_hub: &self.inner.watches,
            lease_keeper: &self.inner.leases,
            auth: self.inner.auth.as_ref(),
        }
    }

    /// Runs a closure on the actors' thread; `false` where it has ended.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let runtime = self.inner.runtime();
        runtime.as_ref().is_some_and(|runtime| runtime.run(job))
    }

    /// A connection that can take a request, by the client's policy; waits for one as long as a request may take.
    pub(crate) async fn ready_connection(&self) -> Result<Arc<Connection>, Error> {
        let deadline = deadline_in(self.request_timeout());
        self.caller().ready_connection(deadline).await
    }

    /// Waits until a member can take requests; if none can in time, fails with
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), naming each endpoint and what is wrong with it.
    pub async fn wait_ready(&self, patience: Duration) -> Result<(), Error> {
        self.caller().wait_ready(deadline_in(patience)).await
    }

    /// Logs in, where the client has credentials and has not yet.
    pub(crate) async fn log_in(&self, patience: Duration) -> Result<(), Error> {
        let deadline = deadline_in(patience);
        self.caller().tokens.current(deadline).await.map(drop)
    }

    /// The id of the cluster; `None` while no member has told it. It changes only where the client was allowed to follow
    /// its endpoints to another cluster ([`ClientBuilder::follow_cluster_change`]).
    pub fn cluster_id(&self) -> Option<u64> {
        Some(self.caller().shared.cluster.get()).filter(|id| *id != 0)
    }

    /// The endpoints in use, in their normal form.
    pub fn endpoints(&self) -> Vec<String> {
        let set = self.caller().ready.load();
        set.members
            .iter()
            .map(|member| member.endpoint.as_str().to_owned())
            .collect()
    }

    /// Uses these endpoints from now on, in place of those the client was made with. Connections to others are closed when what is in flight on them has
    /// finished. Fails, and changes nothing, if one does not parse or there is none.
    pub async fn set_endpoints<E: Into<String>>(
        &self,
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<(), Error> {
        let texts: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        let endpoints = parse_endpoints(&texts, &self.caller().shared.dial.tls)?;
        let update = UpdateEndpoints {
            endpoints,
            source: EndpointSource::User,
        };
        let told = self.caller().balancer.send(update).await;
        told.map_err(|_| Error::shut_down())
    }

    /// Ends the client for all its clones: requests in flight may finish for a moment (`shutdown_grace`), connections
    /// are closed, actors and the thread end. Leases that are to be revoked when dropped are revoked first, for at most
    /// three seconds; the others end with their time. Later requests fail with [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown).
    ///
    /// Who asks for it again while it is under way waits for the same end.
    pub async fn shutdown(self) {
        self.inner.ended.get_or_init(|| self.inner.end()).await;
    }
}

/// The actors that tests can crash.
#[cfg(feature = "test-faults")]
pub(crate) struct ClientActors<'a> {
    pub(crate) watch_hub: &'a Addr<HubActor>,
    pub(crate) lease_keeper: &'a Addr<KeeperActor>,
    pub(crate) auth: Option<&'a Addr<AuthActor>>,
}

impl Inner {
    async fn end(&self) {
        let runtime = self.runtime().take();
        let shutdown = self.shutdown_message();
        // An error means that the actor has ended already.
        let _ = self.watches.send(HubShutdown).await;
        let _ = self.leases.send(END_LEASES).await;
        let _ = self.caller.balancer.send(shutdown).await;
        if let Some(auth) = &self.auth {
            auth.do_send(auth::Close);
        }
        if let Some(runtime) = runtime {
            runtime.join().await;
        }
    }

    fn runtime(&self) -> MutexGuard<'_, Option<Runtime>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shutdown_message(&self) -> BalancerShutdown {
        BalancerShutdown {
            grace: self.shutdown_grace,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime().take() {
            let balancer = self.caller.balancer.clone();
            let (watches, leases) = (self.watches.clone(), self.leases.clone());
            let auth = self.auth.clone();
            let shutdown = self.shutdown_message();
            runtime.finish(async move {
                let _ = watches.send(HubShutdown).await;
                let _ = leases.send(END_LEASES).await;
                let _ = balancer.send(shutdown).await;
                if let Some(auth) = auth {
                    auth.do_send(auth::Close);
                }
            });
        }
    }
}

impl ClientCore for Inner {
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

impl ClientHandle for Client {
    fn core(&self) -> Arc<dyn ClientCore> {
        self.inner.clone()
    }

    fn caller(&self) -> &Caller {
        &self.inner.caller
    }

    fn request_timeout(&self) -> Duration {
        self.inner.request_timeout
    }
}

impl LeaseClient for Client {
    fn leases(&self) -> LeaseService {
        LeaseService {
            core: self.inner.clone(),
            keeper: self.inner.leases.clone(),
        }
    }
}

impl WatchClient for Client {
    fn watches(&self) -> WatchService {
        WatchService {
            hub: self.inner.watches.clone(),
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
