//! etcd as an actor of the application.
//!
//! [`Etcd`] receives unbound requests as messages, for example `put("k", "v")` or `maintenance::requests().status()`.
//! It sends them with its client and responds with their results. If a request sent with `do_send` fails, the recipient
//! of [`Etcd::deliver_failures_to`] receives [`RequestFailed`].
//!
//! | with a client | as a message |
//! |---|---|
//! | `client.get(..)`, `put`, `delete`, `txn`, `compact` | the function of the same name in [`kv`](crate::kv) |
//! | `client.create(..)`, `update`, `remove`, `modify` | the function of the same name in [`conditional_write`](crate::layers::conditional_write) |
//! | `client.put(..).exactly_once()`, also of `delete` and `txn` | [`put(..)`](crate::kv::put)`.exactly_once()` |
//! | `client.get_many(..)` | [`get_many(..)`](crate::layers::get_many::get_many) |
//! | `client.watch(key).deliver_to(..)` | [`watch_keys(key)`](crate::watch::watch_keys)`.deliver_to(recipient)` |
//! | `client.lease(ttl)` | [`grant(ttl)`](crate::lease::grant); with events: `grant(ttl).keep_alive().deliver_to(recipient)` |
//! | `client.revoke(id)`, `time_to_live`, `leases`, `keep_alive_once`, `lease_from` | the function of the same name in [`lease`](crate::lease) |
//! | `client.typed::<T, C>(prefix).get(..)`, `list`, `create`, `update`, `modify`, `put`, `remove`, `watch().deliver_to(..)` | [`typed::<T, C>(prefix)`](crate::layers::typed::typed) with the same methods |
//! | `client.register(..)`, `client.discover(..).deliver_to(..)` | the function of the same name in [`discovery`](crate::recipes::discovery) |
//! | `client.cache(prefix)`, `client.cache(prefix).deliver_to(..)` | [`cache(prefix)`](fn@crate::layers::cache::cache), `cache(prefix).deliver_to(recipient)` |
//! | `client.live_config(key)`, `live_config_of_prefix`, also with `deliver_to(..)` | the function of the same name in [`live_config`](crate::layers::live_config) |
//! | `client.leaders(name).deliver_to(..)` | [`leaders(name)`](crate::recipes::election::leaders)`.deliver_to(recipient)` |
//! | `client.queue(name).push(..)`, `client.queue(name).deliver_to(..)` | [`queue(name)`](crate::recipes::queue::queue)`.push(value)`, `.deliver_to(recipient)` |
//! | `client.counter(name).add(..)`, `set`, `get` | [`counter(name)`](crate::recipes::counter::counter)`.add(1)`, … |
//! | `client.cluster()`, `maintenance`, `health`, `auth`, … | `requests()` of the module |
//! | `client.connectivity_changes().deliver_to(..)` | [`SubscribeConnectivity`](crate::client::SubscribeConnectivity) |
//!
//! Sessions, locks, semaphores, barriers, elections, singletons and mirrors have no message. Create them with a clone of the
//! client; they send their events to actors, too.
//!
//! The actor runs each request in a task of its own, so slow requests do not fill its mailbox. actix does not bound a
//! mailbox for `send` and `do_send`; instead, the actor bounds the requests in flight and the requests that wait, see
//! [`OverloadPolicy`].
//!
//! To restrict a component to some requests, give it a `Recipient`: `Recipient<Put>`, `Recipient<Get>`. Administrative
//! requests share the types [`Request`](crate::request::Request) and [`MemberRequest`](crate::request::MemberRequest),
//! which differ by their response: a `Recipient<Request<HeaderResponse>>` accepts every request that returns a
//! [`HeaderResponse`](crate::request::HeaderResponse).

mod admission;
mod failures;
mod mailbox_error;

pub use self::failures::RequestFailed;
pub use crate::request::EtcdRequest;

use std::{fmt, sync::Arc};

use actix::{Actor, Addr, Context, Handler, Message, Recipient, Supervised, System, SystemService};
use tokio::sync::Semaphore;

use self::failures::FailureReporter;
use crate::{
    client::Client,
    error::{Error, Result},
};

const DEFAULT_MAX_IN_FLIGHT: usize = 1024;
const DEFAULT_MAX_QUEUED: usize = 8192;

/// The actor that receives requests as messages.
///
/// ```no_run
/// # async fn example(client: actix_etcd::Client) -> actix_etcd::Result<()> {
/// use actix::{Actor, Recipient};
/// use actix_etcd::{kv::{Put, get, put}, Etcd};
///
/// let etcd = Etcd::new(client).max_in_flight(100).start();
/// etcd.send(put("k", "v")).await??;
/// let response = etcd.send(get("k")).await??;
/// // For a component that may write keys, and nothing else:
/// let writer: Recipient<Put> = etcd.recipient();
/// # Ok(())
/// # }
/// ```
///
/// A caller that drops the future of `send`, or whose `.timeout(..)` ends, cancels the request. The first `?` converts
/// actix's [`MailboxError`](actix::MailboxError) into an [`Error`].
///
/// Like any actor, `Etcd` stops when its last address is dropped. Requests in flight continue until they are done or
/// the arbiter stops. The actor needs no supervisor: a request that panics ends only its own task.
#[derive(Clone)]
pub struct Etcd {
    /// `None` in a service that is not configured yet.
    client: Option<Client>,
    in_flight: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    overload_policy: OverloadPolicy,
    failures: FailureReporter,
}

/// Handling of requests that arrive while the maximum number of requests is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OverloadPolicy {
    /// The request waits, in order of arrival, until another one is done. If the [queue](Etcd::max_queued) is full, it
    /// fails at once with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). The timeout of the request starts
    /// when it is sent; to limit the time in the queue as well, use actix's `.timeout(..)` on the message.
    #[default]
    Queue,
    /// The request fails at once with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    Reject,
}

impl Etcd {
    /// Creates an actor that sends requests with this client. Start it with [`Actor::start`], or make it a service with
    /// [`configure`](Self::configure).
    pub fn new(client: Client) -> Self {
        Self {
            client: Some(client),
            ..Self::default()
        }
    }

    /// Largest number of requests in flight, at least 1. Default: 1024.
    #[must_use]
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.in_flight = Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// Handling of requests beyond [`max_in_flight`](Self::max_in_flight). Default: [`OverloadPolicy::Queue`].
    #[must_use]
    pub fn overload_policy(mut self, policy: OverloadPolicy) -> Self {
        self.overload_policy = policy;
        self
    }

    /// Largest number of requests that wait in the queue of [`OverloadPolicy::Queue`]. Default: 8192.
    #[must_use]
    pub fn max_queued(mut self, requests: usize) -> Self {
        self.queue = Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// Sends the failures of requests without a waiting caller (sent with `do_send` or `try_send`) to an actor. If that
    /// actor is slow, up to 1024 failures wait for it; others are only logged. Default: all are only logged.
    #[must_use]
    pub fn deliver_failures_to(mut self, subscriber: Recipient<RequestFailed>) -> Self {
        self.failures.set_subscriber(subscriber);
        self
    }

    /// Makes this the service of the current actix system: [`from_registry`](Self::from_registry) returns it on every
    /// arbiter. A second call replaces client and options for later requests. Fails with
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) outside of an actix system.
    pub fn configure(etcd: impl Into<Self>) -> Result<()> {
        if System::try_current().is_none() {
            return Err(Error::invalid(
                "`Etcd::configure` was called outside of an actix system; call it inside one, \
                 for example in `#[actix_rt::main]`",
            ));
        }
        Self::from_registry().do_send(Configure(etcd.into()));
        Ok(())
    }

    /// Returns the service of the current actix system. Until [`configure`](Self::configure) is called, all requests to
    /// it fail with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). Panics outside of an actix
    /// system, as [`SystemService::from_registry`] does.
    pub fn from_registry() -> Addr<Self> {
        <Self as SystemService>::from_registry()
    }

    fn client(&self) -> Result<Client> {
        self.client.clone().ok_or_else(|| {
            Error::invalid(
                "the service `Etcd` is not configured; call `Etcd::configure(client)` in this actix \
                 system first",
            )
        })
    }
}

impl From<Client> for Etcd {
    fn from(client: Client) -> Self {
        Self::new(client)
    }
}

/// Creates a service that is not configured yet.
impl Default for Etcd {
    fn default() -> Self {
        Self {
            client: None,
            in_flight: Arc::new(Semaphore::new(DEFAULT_MAX_IN_FLIGHT)),
            queue: Arc::new(Semaphore::new(DEFAULT_MAX_QUEUED)),
            overload_policy: OverloadPolicy::default(),
            failures: FailureReporter::default(),
        }
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("client", &self.client)
            .field("free_permits", &self.in_flight.available_permits())
            .field("overload_policy", &self.overload_policy)
            .finish_non_exhaustive()
    }
}

impl Actor for Etcd {
    type Context = Context<Self>;
}

impl Supervised for Etcd {}
impl SystemService for Etcd {}

/// Replaces the client and the options of the service.
#[derive(Message)]
#[rtype(result = "()")]
struct Configure(Etcd);

impl Handler<Configure> for Etcd {
    type Result = ();

    fn handle(&mut self, Configure(etcd): Configure, _: &mut Context<Self>) {
        *self = etcd;
    }
}
