//! Every option of a client.

use std::{sync::Arc, time::Duration};

use crate::{
    balancer::{BalancePolicy, RoundRobin},
    client::Client,
    error::{Error, ErrorKind, Outcome},
    retry::{BudgetLimits, RetryPolicy, StandardRetry},
    transport::{Endpoint, dial::DialOptions},
};

/// Makes a [`Client`]. Each option says its default.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `connect` or `connect_lazy`"]
pub struct ClientBuilder {
    pub(crate) endpoints: Vec<String>,
    pub(crate) request_timeout: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) dial: DialOptions,
    pub(crate) policy: Arc<dyn BalancePolicy>,
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) budget: BudgetLimits,
    pub(crate) on_current_arbiter: bool,
    pub(crate) auto_sync: Option<Duration>,
}

impl ClientBuilder {
    pub(crate) fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            request_timeout: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(1),
            dial: DialOptions {
                connect_timeout: Duration::from_secs(2),
                max_response_size: usize::MAX,
                ping_interval: Some(Duration::from_secs(10)),
                ping_timeout: Duration::from_secs(3),
            },
            policy: Arc::new(RoundRobin::new()),
            retry: Arc::new(StandardRetry),
            budget: BudgetLimits::default(),
            on_current_arbiter: false,
            auto_sync: None,
        }
    }

    /// How long a request may take in all, retries included; each request can have its own. Default: 5 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long one attempt to connect may take: name look-up, TCP, HTTP/2 and a first answer. Default: 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.dial.connect_timeout = timeout;
        self
    }

    /// The largest answer that is accepted, in bytes. Default: unlimited (etcd's ranges can be large).
    pub fn max_response_size(mut self, bytes: usize) -> Self {
        self.dial.max_response_size = bytes;
        self
    }

    /// How often an HTTP/2 ping is sent on a connection with open requests, at least 10 s: etcd closes the
    /// connections of clients that ping more often than every 5 s. `None` sends none. Default: 10 s.
    pub fn ping_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.dial.ping_interval = interval.into();
        self
    }

    /// How long a ping may stay unanswered before the connection counts as dead. Default: 3 s.
    pub fn ping_timeout(mut self, timeout: Duration) -> Self {
        self.dial.ping_timeout = timeout;
        self
    }

    /// Which ready member takes a request. Default: [`RoundRobin`].
    pub fn balance(mut self, policy: impl BalancePolicy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// What is tried again, and when. Default: [`StandardRetry`].
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Arc::new(policy);
        self
    }

    /// How much the client as a whole retries. Default: [`BudgetLimits::default`].
    pub fn retry_budget(mut self, limits: BudgetLimits) -> Self {
        self.budget = limits;
        self
    }

    /// How long `shutdown` waits for requests in flight before it closes connections. Default: 1 s.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = grace;
        self
    }

    /// Runs the client's actors on the arbiter that `connect` is called on, instead of on a thread of their own: the
    /// lowest latency, and tests can pause the clock. An application that blocks this arbiter blocks the
    /// client, too. Default: a thread of their own.
    pub fn on_current_arbiter(mut self) -> Self {
        self.on_current_arbiter = true;
        self
    }

    /// Takes the endpoints over from the cluster's member list that often; see [`Client::sync`]. Default: never.
    pub fn auto_sync(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.auto_sync = interval.into();
        self
    }

    /// Starts the client and waits until a member is ready.
    ///
    /// Fails with [`ErrorKind::Unavailable`], naming each endpoint and what is wrong with it, if none is within the
    /// request time-out; with [`ErrorKind::InvalidEndpoint`] or [`ErrorKind::NoEndpoints`] at once.
    pub async fn connect(self) -> Result<Client, Error> {
        let patience = self.request_timeout;
        let client = self.connect_lazy().await?;
        match client.wait_ready(patience).await {
            Ok(()) => Ok(client),
            Err(error) => {
                client.shutdown().await;
                Err(error)
            }
        }
    }

    /// Starts the client without waiting for any member: requests wait for one, up to their deadline.
    pub async fn connect_lazy(self) -> Result<Client, Error> {
        let endpoints = self.parsed_endpoints()?;
        self.validate()?;
        Client::start(self, endpoints).await
    }

    fn validate(&self) -> Result<(), Error> {
        let shortest_ping = Duration::from_secs(10);
        if self
            .dial
            .ping_interval
            .is_some_and(|interval| interval < shortest_ping)
        {
            return Err(Error::invalid(
                "`ping_interval` is shorter than 10 s; etcd closes connections that are pinged more often",
            ));
        }
        let times = [
            ("request_timeout", self.request_timeout),
            ("connect_timeout", self.dial.connect_timeout),
            ("ping_timeout", self.dial.ping_timeout),
        ];
        if self.auto_sync.is_some_and(|interval| interval.is_zero()) {
            return Err(Error::invalid("`auto_sync` is zero"));
        }
        for (name, time) in times {
            if time.is_zero() {
                return Err(Error::invalid(format!("`{name}` is zero")));
            }
        }
        Ok(())
    }

    fn parsed_endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        parse_endpoints(&self.endpoints)
    }
}

/// Parses endpoints; an empty list is an error, and one that is given twice counts once.
pub(crate) fn parse_endpoints(texts: &[String]) -> Result<Vec<Endpoint>, Error> {
    let mut endpoints = Vec::with_capacity(texts.len());
    for text in texts {
        let endpoint = Endpoint::parse(text)?;
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    if endpoints.is_empty() {
        return Err(Error::new(
            ErrorKind::NoEndpoints,
            Outcome::NotSent,
            "give at least one, like http://127.0.0.1:2379",
        ));
    }
    Ok(endpoints)
}
