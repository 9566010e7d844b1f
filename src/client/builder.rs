//! Every option of a client.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;
use zeroize::Zeroizing;

use super::Client;
#[cfg(feature = "tls")]
use crate::transport::TlsOptions;
use crate::{
    auth::{Credentials, Login, Provider},
    balancer::{BalancePolicy, RoundRobin},
    call::MAX_TIMEOUT,
    error::{Error, ErrorKind, Outcome},
    maintenance::versions::{Version, member_versions, require_version},
    retry::{BudgetLimits, RetryPolicy, StandardRetry},
    transport::{Endpoint, RawEndpoint, dial::DialOptions, tls::Tls},
};

/// What no clock can measure is as good as never.
fn measurable(interval: impl Into<Option<Duration>>) -> Option<Duration> {
    interval.into().map(|interval| interval.min(MAX_TIMEOUT))
}

/// Makes a [`Client`]. Each option says its default.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `connect` or `connect_lazy`"]
pub struct ClientBuilder {
    pub(crate) endpoints: Vec<RawEndpoint>,
    pub(crate) request_timeout: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) dial: DialOptions,
    pub(crate) policy: Arc<dyn BalancePolicy>,
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) budget: BudgetLimits,
    pub(crate) on_current_arbiter: bool,
    pub(crate) auto_sync: Option<Duration>,
    pub(crate) watches_per_stream: usize,
    pub(crate) login: Login,
    pub(crate) token_lifetime: Option<Duration>,
    pub(crate) follow_cluster: bool,
    tls_invalid: Option<Error>,
    pub(crate) min_cluster_version: Option<String>,
}

impl ClientBuilder {
    pub(crate) fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints
                .into_iter()
                .map(|text| RawEndpoint(text.into()))
                .collect(),
            request_timeout: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(1),
            dial: DialOptions {
                connect_timeout: Duration::from_secs(2),
                max_response_size: usize::MAX,
                ping_interval: Some(Duration::from_secs(10)),
                ping_timeout: Duration::from_secs(3),
                tls: Tls::default(),
            },
            policy: Arc::new(RoundRobin::new()),
            retry: Arc::new(StandardRetry),
            budget: BudgetLimits::default(),
            on_current_arbiter: false,
            auto_sync: None,
            watches_per_stream: 256,
            login: Login::Anonymous,
            token_lifetime: None,
            follow_cluster: false,
            tls_invalid: None,
            min_cluster_version: None,
        }
    }

    /// How long a request may take in all, retries included; each request can have its own. Default: 5 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// How long one attempt to connect may take: name look-up, TCP, HTTP/2 and a first answer. Default: 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.dial.connect_timeout = timeout.min(MAX_TIMEOUT);
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
        self.dial.ping_interval = measurable(interval);
        self
    }

    /// How long a ping may stay unanswered before the connection counts as dead. Default: 3 s.
    pub fn ping_timeout(mut self, timeout: Duration) -> Self {
        self.dial.ping_timeout = timeout.min(MAX_TIMEOUT);
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

    /// How `https://` and `unixs://` endpoints are reached. Default: the system's certificate authorities, no client
    /// certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls_invalid = options.validate().err();
        self.dial.tls = Tls::new(options);
        self
    }

    /// Logs in as this user. The client gets a token, renews it before it ends or when it is refused, and goes without
    /// where authentication is not enabled. Replaces `token` and `credentials_provider`. Default: no user.
    pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let provider = Provider::always(Credentials::password(user, password));
        self.logging_in(Login::Provided(provider))
    }

    /// Sends this token with every request, such as a JWT. It is never renewed: where tokens end, use `credentials` or
    /// `credentials_provider`. Replaces those. Default: none.
    pub fn token(self, token: impl Into<String>) -> Self {
        self.logging_in(Login::Token(Zeroizing::new(token.into())))
    }

    /// Asks this function for credentials whenever the client logs in: for passwords that rotate, and for tokens that
    /// are made elsewhere. It runs on the client's own thread, so it must not block, and may take as long as a request.
    /// Replaces `credentials` and `token`. Default: none.
    ///
    /// ```no_run
    /// # async fn example() -> actix_etcd::Result<()> {
    /// use actix_etcd::{Client, Credentials};
    ///
    /// let etcd = Client::builder(["http://127.0.0.1:2379"])
    ///     .credentials_provider(|| async {
    ///         let mut password = tokio::fs::read_to_string("/run/secrets/etcd").await?;
    ///         // Cut, not copied: what is handed over is wiped from memory, a copy would not be.
    ///         password.truncate(password.trim_end().len());
    ///         Ok::<_, std::io::Error>(Credentials::password("app", password))
    ///     })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials_provider<F, R, E>(self, give: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.logging_in(Login::Provided(Provider::new(give)))
    }

    /// How long a token lasts that does not tell so itself: it is replaced before that, as a JWT is before its own end.
    /// For etcd's simple tokens give the cluster's `--auth-token-ttl`, which is 300 s unless set. Default: such a token
    /// is replaced when it is refused. That costs a call one more round trip, and only after that long
    /// without any, for a member keeps a simple token as long as it is used.
    pub fn token_lifetime(mut self, lifetime: impl Into<Option<Duration>>) -> Self {
        self.token_lifetime = measurable(lifetime);
        self
    }

    /// Goes on where the endpoints lead to another cluster all of a sudden, say one that was restored from a backup
    /// under the same names: the client logs in there, [`Client::cluster_id`] tells it, and watches end with the
    /// reason, as their revisions mean nothing there. Default: members of another cluster are refused with
    /// [`ErrorKind::ClusterChanged`].
    pub fn follow_cluster_change(mut self) -> Self {
        self.follow_cluster = true;
        self
    }

    /// Makes `connect` fail with [`ErrorKind::OldCluster`] if a member runs an older etcd than this, such as `3.5`.
    /// Default: any version.
    pub fn min_cluster_version(mut self, version: impl Into<String>) -> Self {
        self.min_cluster_version = Some(version.into());
        self
    }

    fn logging_in(mut self, login: Login) -> Self {
        self.login = login;
        self
    }

    /// How long `shutdown` waits for requests in flight before it closes connections. Default: 1 s.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = grace.min(MAX_TIMEOUT);
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
        self.auto_sync = measurable(interval);
        self
    }

    /// How many watches share one stream of a connection. Fewer keep a busy watch from delaying others, more need less
    /// memory on the server. Default: 256.
    pub fn watches_per_stream(mut self, watches: usize) -> Self {
        self.watches_per_stream = watches;
        self
    }

    /// Starts the client, waits until a member is ready and logs in.
    ///
    /// Fails with [`ErrorKind::Unavailable`], naming each endpoint and what is wrong with it, if none is within the
    /// request time-out; with [`ErrorKind::TlsFailed`] as soon as every endpoint was dialled and certificates are what is
    /// wrong with all of them; with [`ErrorKind::InvalidEndpoint`] or [`ErrorKind::NoEndpoints`] at once.
    pub async fn connect(self) -> Result<Client, Error> {
        let patience = self.request_timeout;
        let oldest = self.oldest_version()?;
        let client = self.connect_lazy().await?;
        let started = async {
            let deadline = Instant::now() + patience;
            client.caller().first_ready(deadline).await?;
            client.log_in(patience).await?;
            match oldest {
                Some(oldest) => {
                    let members = member_versions(&client, client.endpoints(), patience).await;
                    require_version(members, oldest)
                }
                None => Ok(()),
            }
        };
        match started.await {
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
        if let Some(error) = &self.tls_invalid {
            return Err(error.clone());
        }
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
        if self.watches_per_stream == 0 {
            return Err(Error::invalid("`watches_per_stream` is zero"));
        }
        let times = [
            ("request_timeout", self.request_timeout),
            ("connect_timeout", self.dial.connect_timeout),
            ("ping_timeout", self.dial.ping_timeout),
        ];
        if self.auto_sync.is_some_and(|interval| interval.is_zero()) {
            return Err(Error::invalid("`auto_sync` is zero"));
        }
        if self
            .token_lifetime
            .is_some_and(|lifetime| lifetime.is_zero())
        {
            return Err(Error::invalid("`token_lifetime` is zero"));
        }
        for (name, time) in times {
            if time.is_zero() {
                return Err(Error::invalid(format!("`{name}` is zero")));
            }
        }
        Ok(())
    }

    fn oldest_version(&self) -> Result<Option<Version>, Error> {
        let Some(text) = &self.min_cluster_version else {
            return Ok(None);
        };
        let version = Version::parse(text).ok_or_else(|| {
            Error::invalid(format!(
                "`min_cluster_version` is {text:?}; write it like 3.5"
            ))
        })?;
        Ok(Some(version))
    }

    fn parsed_endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        parse_endpoints(&self.endpoints, &self.dial.tls)
    }
}

/// Parses endpoints; an empty list is an error, and one that is given twice counts once.
pub(crate) fn parse_endpoints(
    texts: &[impl AsRef<str>],
    tls: &Tls,
) -> Result<Vec<Endpoint>, Error> {
    let mut endpoints = Vec::with_capacity(texts.len());
    for text in texts {
        let endpoint = Endpoint::parse(text.as_ref())?;
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
    let plain = endpoints.iter().find(|endpoint| !endpoint.is_tls());
    let encrypted = endpoints.iter().find(|endpoint| endpoint.is_tls());
    if let (Some(plain), Some(encrypted), false) = (plain, encrypted, tls.allows_plain()) {
        return Err(Error::new(
            ErrorKind::InvalidEndpoint,
            Outcome::NotSent,
            format!(
                "{plain} is not encrypted and {encrypted} is; if that is wanted, say so with \
                 `TlsOptions::allow_plain_endpoints`"
            ),
        ));
    }
    Ok(endpoints)
}

#[cfg(test)]
#[path = "builder_tests.rs"]
mod tests;
