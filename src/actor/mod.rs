//! etcd as an actor among the application's actors.
//!
//! [`Etcd`] is told requests, the same objects that are awaited on a [`Client`]: `put("k", "v")`, `grant(ttl)`,
//! `maintenance::requests().status()`. It answers each with the request's result. What nobody waits for (`do_send`) and
//! fails is told to the subscriber of failures, as [`RequestFailed`].
//!
//! A handler starts the call as a task of its own, and nothing of it stays in the actor's context: nothing piles up in
//! its mailbox. That is not bounded by actix: `send` and `do_send` find room in a full mailbox, too. So it is bounded
//! here how many calls are under way and how many wait for that; see [`OverloadPolicy`].
//!
//! What a component may do is a `Recipient` of it: `Recipient<Put>`, `Recipient<Get>`. Requests of the administration
//! share few types, [`Request`](crate::Request) and [`MemberRequest`](crate::MemberRequest), told apart by what they
//! answer: a `Recipient<Request<HeaderResponse, ()>>` is the right to all that answer [`HeaderResponse`](crate::HeaderResponse).

mod serve;

pub use crate::request::EtcdRequest;

use std::{any::Any, fmt, sync::Arc};

use actix::{Actor, Addr, Context, Handler, Message, Recipient, Supervised, System, SystemService};
use tokio::sync::Semaphore;

use crate::{
    client::Client,
    error::{Error, Result},
};

/// The calls that may be under way at once, unless told otherwise.
const AT_MOST: usize = 1024;
/// The requests that may wait for that, unless told otherwise.
const WAITING: usize = 8192;
/// The failures that may wait for a slow subscriber; those beyond are only logged.
const FAILURES_WAITING: usize = 1024;

/// The actor that takes requests as messages.
///
/// ```no_run
/// # async fn example(client: actix_etcd::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use actix::{Actor, Recipient};
/// use actix_etcd::{kv::{Put, get, put}, Etcd};
///
/// let etcd = Etcd::new(client).max_in_flight(100).start();
/// etcd.send(put("k", "v")).await??;
/// let found = etcd.send(get("k")).await??;
/// // For a component that may write keys, and nothing else:
/// let writer: Recipient<Put> = etcd.recipient();
/// # Ok(())
/// # }
/// ```
///
/// A caller that drops the answer it was waiting for, or whose time-out ends, ends the call as well, as with a client.
/// Ends when its last address is dropped, as any actor; calls under way go on until their end or the end of the arbiter.
/// It is not supervised, and need not be: a request of yours that panics costs its own call, which is a task of its own.
#[derive(Clone)]
pub struct Etcd {
    /// None in a service that was not configured yet.
    client: Option<Client>,
    calls: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    overload_policy: OverloadPolicy,
    failures: Failures,
}

/// What becomes of a request that comes while as many calls are under way as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OverloadPolicy {
    /// It waits until a call has ended, in the order of arrival. Where as many wait as [may](Etcd::max_queued), it
    /// fails at once with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded). Its own time-out begins when it has
    /// waited; to bound the waiting in time, too, use actix's `.timeout` on the message.
    #[default]
    Queue,
    /// It fails at once with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    Reject,
}

impl Etcd {
    /// An actor that makes its calls on this client; to be started with [`Actor::start`], or made a service with
    /// [`configure`](Self::configure).
    pub fn new(client: Client) -> Self {
        Self {
            client: Some(client),
            ..Self::default()
        }
    }

    /// How many calls may be under way at once; at least one. Default: 1024.
    #[must_use]
    pub fn max_in_flight(mut self, calls: usize) -> Self {
        self.calls = Arc::new(Semaphore::new(calls.clamp(1, Semaphore::MAX_PERMITS)));
        self
    }

    /// What becomes of requests beyond that. Default: [`OverloadPolicy::Queue`].
    #[must_use]
    pub fn overload_policy(mut self, choice: OverloadPolicy) -> Self {
        self.overload_policy = choice;
        self
    }

    /// How many requests may wait, where they [do](OverloadPolicy::Queue). Default: 8192.
    #[must_use]
    pub fn max_queued(mut self, requests: usize) -> Self {
        self.waiting = Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// Who is told of failures nobody waits for, which are those of `do_send` and `try_send`. Of a subscriber that is
    /// behind, 1024 failures wait; others are logged. Default: all are logged.
    #[must_use]
    pub fn deliver_failures_to(mut self, subscriber: Recipient<RequestFailed>) -> Self {
        self.failures.subscriber = Some(subscriber);
        self
    }

    /// Makes it the service of the current actix system that [`from_registry`](Self::from_registry) finds, on every
    /// arbiter of it. Said again, later requests go by the new configuration. Fails outside of an actix system.
    pub fn configure(etcd: impl Into<Self>) -> Result<()> {
        if System::try_current().is_none() {
            return Err(Error::invalid(
                "there is no actix system on this thread: call `Etcd::configure` inside of one",
            ));
        }
        Self::from_registry().do_send(Configure(etcd.into()));
        Ok(())
    }

    /// The service of the current actix system. Until it is [configured](Self::configure), every request to it fails
    /// with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). Panics outside of an actix system, as
    /// [`SystemService::from_registry`] does.
    pub fn from_registry() -> Addr<Self> {
        <Self as SystemService>::from_registry()
    }

    fn client(&self) -> Result<Client> {
        self.client.clone().ok_or_else(|| {
            Error::invalid(
                "the service `Etcd` is not configured: call `Etcd::configure` in this system first",
            )
        })
    }
}

impl From<Client> for Etcd {
    fn from(client: Client) -> Self {
        Self::new(client)
    }
}

/// A service that is not configured yet.
impl Default for Etcd {
    fn default() -> Self {
        Self {
            client: None,
            calls: Arc::new(Semaphore::new(AT_MOST)),
            waiting: Arc::new(Semaphore::new(WAITING)),
            overload_policy: OverloadPolicy::default(),
            failures: Failures {
                subscriber: None,
                waiting: Arc::new(Semaphore::new(FAILURES_WAITING)),
            },
        }
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("client", &self.client)
            .field("free", &self.calls.available_permits())
            .field("overload_policy", &self.overload_policy)
            .finish_non_exhaustive()
    }
}

impl Actor for Etcd {
    type Context = Context<Self>;
}

impl Supervised for Etcd {}
impl SystemService for Etcd {}

/// Use this client and these options from now on. Told to the service by itself.
#[derive(Message)]
#[rtype(result = "()")]
struct Configure(Etcd);

impl Handler<Configure> for Etcd {
    type Result = ();

    fn handle(&mut self, Configure(etcd): Configure, _: &mut Context<Self>) {
        *self = etcd;
    }
}

/// A request failed whose sender waits for no answer.
#[derive(Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub struct RequestFailed {
    /// What it was, such as `Put`.
    pub name: &'static str,
    /// Why it failed.
    pub error: Error,
    request: Box<dyn Any + Send>,
}

impl RequestFailed {
    /// A failure to tell: for tests of a subscriber.
    pub fn new<R: EtcdRequest<Client>>(request: R, error: Error) -> Self {
        Self {
            name: request.name(),
            error,
            request: Box::new(request),
        }
    }

    /// The request itself, if it was of this type: `failed.request::<Put>()`.
    pub fn request<R: EtcdRequest<Client>>(&self) -> Option<&R> {
        self.request.downcast_ref()
    }
}

impl fmt::Debug for RequestFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFailed")
            .field("name", &self.name)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// Where failures nobody waits for go.
#[derive(Clone)]
struct Failures {
    subscriber: Option<Recipient<RequestFailed>>,
    waiting: Arc<Semaphore>,
}

impl Failures {
    /// Waits for a slow subscriber, but never with more than so many failures: what is behind must not grow.
    async fn tell<R: EtcdRequest<Client>>(&self, request: R, error: Error) {
        let failed = RequestFailed::new(request, error);
        tracing::debug!(request = failed.name, error = %failed.error, "a request nobody waits for failed");
        if let Some(subscriber) = &self.subscriber
            && let Ok(_waiting) = self.waiting.try_acquire()
        {
            let told = format!("{failed:?}");
            if subscriber.send(failed).await.is_err() {
                tracing::warn!(failure = told, "the subscriber of failures has ended");
            }
            return;
        }
        tracing::warn!(request = failed.name, error = %failed.error, "a request nobody waits for failed");
    }
}
