//! The options of a client.

#[cfg(test)]
mod tests;
mod validation;

pub(super) use validation::parse_endpoints;

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use zeroize::Zeroizing;

use super::{Client, running_client::RequestOptions, startup::require_tokio_runtime};
#[cfg(feature = "tls")]
use crate::transport::{TlsOptions, tls::Tls};
use crate::{
    auth::{AuthMethod, Credentials, CredentialsProvider},
    balancer::{BalancePolicy, RoundRobin},
    call::{MAX_TIMEOUT, deadline_in},
    connection::Liveness,
    error::Error,
    maintenance::versions::{member_versions, require_version},
    request::IntoBytes,
    retry::{BudgetLimits, RetryPolicy, StandardRetry},
    transport::{RawEndpoint, dial::DialOptions},
    watch::engine::hub::WatchStreamSettings,
};

/// Options of a [`Client`], created by [`Client::builder`]. Every option has a default; the endpoints are enough to
/// connect.
///
/// ```no_run
/// # async fn example() -> actix_etcd::Result<()> {
/// use std::time::Duration;
///
/// use actix_etcd::Client;
///
/// let etcd = Client::builder(["http://10.0.0.1:2379", "http://10.0.0.2:2379", "http://10.0.0.3:2379"])
///     .request_timeout(Duration::from_secs(3))
///     .credentials("app", "a password")
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `connect` or `connect_lazy` is awaited"]
pub struct ClientBuilder {
    pub(super) endpoints: Vec<RawEndpoint>,
    pub(super) request_options: RequestOptions,
    pub(super) shutdown_grace: Duration,
    pub(super) drop_grace: Duration,
    pub(super) dial: DialOptions,
    pub(super) liveness: Liveness,
    pub(super) balance_policy: Arc<dyn BalancePolicy>,
    pub(super) retry_policy: Arc<dyn RetryPolicy>,
    pub(super) retry_budget: BudgetLimits,
    pub(super) max_in_flight: usize,
    pub(super) hedging: bool,
    pub(super) on_current_arbiter: bool,
    pub(super) auto_sync: Option<Duration>,
    pub(super) watch_streams: WatchStreamSettings,
    pub(super) auth_method: AuthMethod,
    pub(super) token_lifetime: Option<Duration>,
    pub(super) follow_cluster_change: bool,
    min_cluster_version: Option<String>,
    /// Why the TLS options are not valid.
    tls_error: Option<Error>,
}

impl ClientBuilder {
    pub(super) fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints
                .into_iter()
                .map(|text| RawEndpoint(text.into()))
                .collect(),
            request_options: RequestOptions {
                timeout: Duration::from_secs(5),
                marker_prefix: Bytes::from_static(b"actix-etcd/markers/"),
            },
            shutdown_grace: Duration::from_secs(1),
            drop_grace: Duration::from_secs(1),
            dial: DialOptions::default(),
            liveness: Liveness::default(),
            balance_policy: Arc::new(RoundRobin::new()),
            retry_policy: Arc::new(StandardRetry),
            retry_budget: BudgetLimits::default(),
            max_in_flight: 2_000,
            hedging: true,
            on_current_arbiter: false,
            auto_sync: None,
            watch_streams: WatchStreamSettings::default(),
            auth_method: AuthMethod::Anonymous,
            token_lifetime: None,
            follow_cluster_change: false,
            min_cluster_version: None,
            tls_error: None,
        }
    }

    /// Longest time a request may take, retries included. A request can set its own with `.timeout(..)`. Default: 5 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_options.timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Longest time one attempt to connect to an endpoint may take: DNS lookup, TCP, TLS, HTTP/2 and a first response.
    /// If a host name has several addresses, all of them are tried within this time, and the first that responds is
    /// used. Failed attempts are repeated. Default: 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.dial.connect_timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Largest response the client accepts, in bytes. A larger one fails with
    /// [`ErrorKind::ResponseTooLarge`](crate::ErrorKind::ResponseTooLarge). Default: no limit.
    ///
    /// A response or stream that is not read occupies at most 2 MiB: the member sends more only when it is read. Up to
    /// 1,000 unread ones do not delay the other requests of their connection.
    pub fn max_response_size(mut self, bytes: usize) -> Self {
        self.dial.max_response_size = bytes;
        self
    }

    /// Interval of HTTP/2 pings on connections with requests in flight; `None` sends none. Must be at least 10 s,
    /// because etcd closes connections that are pinged more often than every 5 s. If a server or proxy closes a
    /// connection because of too many pings, the interval of that endpoint doubles. Default: 10 s.
    pub fn ping_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.dial.ping_interval = limited(interval);
        self
    }

    /// Longest time between a ping and its response. After that, the connection is closed. Default: 3 s.
    pub fn ping_timeout(mut self, timeout: Duration) -> Self {
        self.dial.ping_timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    /// Times after which a member that does not respond is suspected and left. On slow links, the client uses longer
    /// times. Default: [`Liveness::default`].
    pub fn liveness(mut self, liveness: Liveness) -> Self {
        self.liveness = liveness;
        self
    }

    /// Policy that chooses the member for each request, among those that are ready. Default: [`RoundRobin`], all
    /// members in turn.
    pub fn balance(mut self, policy: impl BalancePolicy) -> Self {
        self.balance_policy = Arc::new(policy);
        self
    }

    /// Policy that decides whether and when a failed request is retried. No policy can make the client repeat a write
    /// that may have been applied. Default: [`StandardRetry`].
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry_policy = Arc::new(policy);
        self
    }

    /// Limits of the retries of all requests together, so that an outage does not multiply the load on the cluster.
    /// Default: 250 per second in the long run, bursts of 500 ([`BudgetLimits::default`]).
    pub fn retry_budget(mut self, limits: BudgetLimits) -> Self {
        self.retry_budget = limits;
        self
    }

    /// Largest number of requests that the client has in flight at once, on all connections together. Further requests
    /// wait in order of arrival, up to their timeout. Streams, logins, and locks and campaigns on the server do not
    /// count. etcd rejects requests while more than 5,000 writes of all clients wait to be applied. Default: 2,000.
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = requests;
        self
    }

    /// Whether a request whose response is late is also sent to another member. This applies to requests that may be
    /// repeated: reads, logins, lease grants and revocations, but not other writes. The first response wins. Hedges
    /// protect calls from a slow member. They use at most half of the retry budget, and the retry policy can forbid
    /// them (see [`RetryPolicy`]). Default: `true`.
    pub fn hedging(mut self, hedging: bool) -> Self {
        self.hedging = hedging;
        self
    }

    /// TLS options for `https://` and `unixs://` endpoints. Default: the system's certificate authorities, no client
    /// certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls_error = options.validate().err();
        self.dial.tls = Tls::new(options);
        self
    }

    /// Logs in as this user. The client renews its token before it expires, or when a member rejects it. If
    /// authentication is not enabled on the cluster, requests carry no token. Replaces [`token`](Self::token) and
    /// [`credentials_provider`](Self::credentials_provider). Default: no user.
    pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let credentials = Credentials::password(user, password);
        self.with_auth_method(AuthMethod::Login(CredentialsProvider::fixed(credentials)))
    }

    /// Sends this token with every request, for example a JWT. The client never renews it; for tokens that expire, use
    /// [`credentials`](Self::credentials) or [`credentials_provider`](Self::credentials_provider), which this replaces.
    /// Default: no token.
    pub fn token(self, token: impl Into<String>) -> Self {
        self.with_auth_method(AuthMethod::FixedToken(Zeroizing::new(token.into())))
    }

    /// Calls this function for the credentials of each login: for passwords that change, and for tokens from another
    /// service. It runs on the client's thread, so it must not block, and it may take up to the request timeout.
    /// Replaces [`credentials`](Self::credentials) and [`token`](Self::token). Default: none.
    ///
    /// ```no_run
    /// # async fn example() -> actix_etcd::Result<()> {
    /// use actix_etcd::{Client, Credentials};
    ///
    /// let etcd = Client::builder(["http://127.0.0.1:2379"])
    ///     .credentials_provider(|| async {
    ///         let mut password = tokio::fs::read_to_string("/run/secrets/etcd").await?;
    ///         // Truncated in place: the client wipes this string from memory, but not a copy of it.
    ///         password.truncate(password.trim_end().len());
    ///         Ok::<_, std::io::Error>(Credentials::password("app", password))
    ///     })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials_provider<F, R, E>(self, provide: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.with_auth_method(AuthMethod::Login(CredentialsProvider::new(provide)))
    }

    /// Lifetime of tokens that carry no expiry, which are etcd's simple tokens: the value of the cluster's
    /// `--auth-token-ttl`, 300 s unless changed. The client then renews them before they expire, as it does with JWTs.
    /// Default: unknown. Simple tokens are then renewed when a member rejects them. This happens only after a pause of
    /// that length, because every use extends their life, and costs one request an additional round trip.
    pub fn token_lifetime(mut self, lifetime: impl Into<Option<Duration>>) -> Self {
        self.token_lifetime = limited(lifetime);
        self
    }

    /// Continues if the endpoints lead to another cluster, for example one restored from a backup under the same
    /// addresses. The client logs in there, [`Client::cluster_id`] changes, watches end with
    /// [`WatchEnd::ClusterChanged`](crate::watch::WatchEnd::ClusterChanged), and kept leases with
    /// [`LeaseLost::ClusterChanged`](crate::lease::LeaseLost::ClusterChanged), because revisions and leases of one
    /// cluster mean nothing in another.
    ///
    /// The client uses one cluster at a time. It follows another one when every endpoint leads there, or when no member
    /// of its cluster has responded for 1 s. From then on it refuses members of the cluster it left, also responses to
    /// requests in flight, until no member of the new cluster responds.
    ///
    /// Default: members of another cluster are rejected with
    /// [`ErrorKind::ClusterChanged`](crate::ErrorKind::ClusterChanged).
    pub fn follow_cluster_change(mut self) -> Self {
        self.follow_cluster_change = true;
        self
    }

    /// Oldest version of etcd that [`connect`](Self::connect) accepts, such as `3.5`. If a member runs an older one,
    /// `connect` fails with [`ErrorKind::OldCluster`](crate::ErrorKind::OldCluster). Default: any version.
    pub fn min_cluster_version(mut self, version: impl Into<String>) -> Self {
        self.min_cluster_version = Some(version.into());
        self
    }

    /// Longest time that [`Client::shutdown`] waits for work under locks to stop, and then for requests in flight
    /// before it closes their connections. The actor of a singleton may have longer to stop, see
    /// [`margin`](crate::recipes::singleton::SingletonBuilder::margin). Default: 1 s.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.shutdown_grace = grace.min(MAX_TIMEOUT);
        self
    }

    /// Longest time that dropping the last handle of a client blocks its thread, until leases are revoked and locks are
    /// released. Does not block if there are none, nor for a client [on the current arbiter](Self::on_current_arbiter).
    /// Zero never blocks: leases are then revoked in the background, if the process runs for long enough. Default: 1 s.
    pub fn drop_grace(mut self, grace: Duration) -> Self {
        self.drop_grace = grace.min(MAX_TIMEOUT);
        self
    }

    /// Runs the client's actors on the arbiter that calls `connect`. This has the lowest latency, and tests can pause
    /// tokio's clock; but code that blocks the arbiter blocks the client, too, and leases may expire. Call
    /// [`Client::shutdown`] before the arbiter ends: a drop cannot wait until leases are revoked and locks are
    /// released. Default: the actors have a thread of their own.
    pub fn on_current_arbiter(mut self) -> Self {
        self.on_current_arbiter = true;
        self
    }

    /// Whether a runtime that makes many calls also reads and writes the sockets of the client, which saves two changes of
    /// threads per call. The client's thread takes them back within 60 ms if the runtime stops polling its tasks, if it
    /// ends, or if other runtimes make many calls, too. Actors, watches and leases stay on the client's thread in any case.
    ///
    /// Set it to `false` if the application often blocks its threads for a few milliseconds and uses watches that must
    /// not be delayed by that. A runtime without I/O cannot get a socket: when the client tries, at most once per hour
    /// and connection, tokio panics, which runs the panic hook of the application; the client catches the panic, and its
    /// thread keeps the socket. Default: `true`.
    pub fn sockets_follow_callers(mut self, enabled: bool) -> Self {
        self.dial.follow_callers = enabled;
        self
    }

    /// Interval at which the client updates its endpoints from the cluster's member list, see [`Client::sync`]. `None`
    /// disables it. Default: disabled.
    pub fn auto_sync(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.auto_sync = limited(interval);
        self
    }

    /// Largest number of watches that share one stream of a connection. With fewer watches per stream, a busy watch
    /// delays fewer others; with more, the server needs less memory. Default: 256.
    pub fn watches_per_stream(mut self, watches: usize) -> Self {
        self.watch_streams.watches_per_stream = watches;
        self
    }

    /// Interval at which the client requests the progress of its watches: one small request per stream, for up to
    /// [`watches_per_stream`](Self::watches_per_stream) watches. `None` disables it.
    ///
    /// The position of a watch without events moves only by progress. If it does not move, and the history of other keys
    /// is compacted in the meantime, the watch ends as
    /// [`Compacted`](crate::watch::WatchEnd::Compacted) at its next reconnect, although it missed nothing. So the
    /// interval has to be shorter than the time for which the cluster keeps its history. It also limits how old
    /// [`Watch::freshness`](crate::Watch::freshness) is. The interval varies by 20 %. Default: 10 s.
    ///
    /// etcd's gRPC proxy does not respond to these requests, and none are sent to it. Through a proxy, positions move at
    /// the interval that the members set with `--watch-progress-notify-interval` (before etcd 3.6
    /// `--experimental-watch-progress-notify-interval`; default: 10 minutes).
    pub fn watch_progress_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.watch_streams.progress_interval = limited(interval);
        self
    }

    /// Prefix of the markers of writes that are applied [exactly once](crate::layers::exactly_once). Users of such writes
    /// need permission to read and write it, and other programs must not change keys under it. Default:
    /// `actix-etcd/markers/`.
    pub fn marker_prefix(mut self, prefix: impl IntoBytes) -> Self {
        self.request_options.marker_prefix = prefix.into_bytes();
        self
    }

    /// Starts the client, waits until a member is ready, and logs in if there are credentials.
    ///
    /// The client belongs to the cluster that most of its endpoints report. It uses that cluster as soon as more than
    /// half of them agree; otherwise those that respond within 300 ms decide. Endpoints of another cluster are not used
    /// and have the error [`ErrorKind::ClusterChanged`](crate::ErrorKind::ClusterChanged) in [`Client::connectivity`].
    /// On every new connection, the member must report its cluster id before the client sends a password or token.
    /// Endpoints given by the user are also used if their members report no cluster id, as some proxies do.
    ///
    /// Fails with
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no member is ready within the request timeout;
    ///   the error lists every endpoint with its last failure,
    /// - [`ErrorKind::TlsFailed`](crate::ErrorKind::TlsFailed) as soon as every endpoint has failed because of TLS:
    ///   a rejected certificate, a port without TLS, or plain `http://` to a port that expects TLS,
    /// - [`ErrorKind::MixedClusters`](crate::ErrorKind::MixedClusters) as soon as the endpoints report different
    ///   clusters without a majority; the error lists every endpoint with the id of its cluster,
    /// - [`ErrorKind::AuthFailed`](crate::ErrorKind::AuthFailed) or another error of the login,
    /// - [`ErrorKind::InvalidEndpoint`](crate::ErrorKind::InvalidEndpoint),
    ///   [`ErrorKind::NoEndpoints`](crate::ErrorKind::NoEndpoints) or
    ///   [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) at once if the options are not valid, or if
    ///   there is no tokio runtime with its timer enabled.
    pub async fn connect(self) -> Result<Client, Error> {
        let timeout = self.request_options.timeout;
        let required_version = self.required_version()?;
        let client = self.connect_lazy().await?;
        let connected = async {
            client.caller().first_ready(deadline_in(timeout)).await?;
            client.log_in(timeout).await?;
            match required_version {
                Some(version) => {
                    let members = member_versions(&client, client.endpoints(), timeout).await;
                    require_version(members, version)
                }
                None => Ok(()),
            }
        };
        match connected.await {
            Ok(()) => Ok(client),
            Err(error) => {
                client.shutdown().await;
                Err(error)
            }
        }
    }

    /// Starts the client without waiting for a member. Requests wait for one, up to their timeout. While the endpoints
    /// report different clusters without a majority, requests fail with
    /// [`ErrorKind::MixedClusters`](crate::ErrorKind::MixedClusters) after their timeout.
    ///
    /// Fails only if the options are not valid, or if there is no tokio runtime with its timer enabled.
    pub async fn connect_lazy(self) -> Result<Client, Error> {
        require_tokio_runtime()?;
        let endpoints = self.parsed_endpoints()?;
        self.validate()?;
        Client::start(self, endpoints).await
    }

    /// Replaces the system's resolver, for tests.
    #[cfg(feature = "test-faults")]
    pub(crate) fn resolver(mut self, resolver: crate::transport::resolver::Resolver) -> Self {
        self.dial.resolver = resolver;
        self
    }

    fn with_auth_method(mut self, method: AuthMethod) -> Self {
        self.auth_method = method;
        self
    }
}

/// Limits an interval to [`MAX_TIMEOUT`], so that deadlines do not overflow.
fn limited(interval: impl Into<Option<Duration>>) -> Option<Duration> {
    interval.into().map(|interval| interval.min(MAX_TIMEOUT))
}
