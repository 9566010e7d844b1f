//! Opens an HTTP/2 connection to an endpoint.

use std::{
    cell::RefCell,
    fmt, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use bytes::Bytes;
use h2::client;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::Instant,
};

use super::{
    address_history::AddressHistory,
    channel::{Channel, ChannelMonitor},
    driver::Driver,
    endpoint::{Endpoint, Target},
    movable_socket::{MovableSocket, RegisteredSocket, SocketRegistration},
    ping_pace::PingPace,
    pinger::Pinger,
    resolver::Resolver,
    shared_connection::SharedConnection,
    tls::Tls,
    wire_log::{LoggedIo, WireLog},
};
use crate::error::{Error, ErrorKind, Outcome};

/// Limits the memory of each response that is not read. Large enough that a response of several megabytes does not wait
/// for window updates.
const STREAM_WINDOW: u32 = 2 << 20;
/// The largest window of HTTP/2, so that responses that are not read do not block the other streams of a connection:
/// each fills its own window only.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// h2 closes a connection whose unread small DATA frames exceed this budget. A watch consists of small frames, and the
/// stream window limits their number already.
const SMALL_FRAME_BUDGET: usize = usize::MAX;
/// Number of cancelled streams that h2 remembers, so that late frames for them are not protocol errors.
const REMEMBERED_RESETS: usize = 1024;

/// Settings of new connections.
#[derive(Debug, Clone)]
pub(crate) struct DialOptions {
    pub(crate) connect_timeout: Duration,
    pub(crate) max_response_size: usize,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) ping_timeout: Duration,
    pub(crate) ping_pace: PingPace,
    pub(crate) tls: Tls,
    pub(crate) resolver: Resolver,
    /// Whether the runtime of the callers may drive connections.
    pub(crate) follow_callers: bool,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            max_response_size: usize::MAX,
            ping_interval: Some(Duration::from_secs(10)),
            ping_timeout: Duration::from_secs(3),
            ping_pace: PingPace::default(),
            tls: Tls::default(),
            resolver: Resolver::default(),
            follow_callers: true,
        }
    }
}

/// A socket to connect to: one address of a host, or a Unix domain socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DialAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl DialAddress {
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Returns whether this is an address that is valid on one network link only, such as that of a cloud's metadata
    /// service.
    pub(crate) fn is_link_local(&self) -> bool {
        self.socket_address()
            .is_some_and(|address| is_link_local(address.ip()))
    }
}

/// Returns whether an address is in 169.254.0.0/16 or `fe80::/10`.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

impl fmt::Display for DialAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

pub(super) type BoxedSocket = Box<dyn Socket>;

/// A connection after its handshake. It makes progress only while the driver is polled.
pub(crate) struct NewConnection {
    pub(crate) channel: Channel,
    pub(crate) driver: Driver,
}

/// Returns the addresses of an endpoint in the order in which to try them. Host names are looked up on every call.
pub(crate) async fn addresses(
    endpoint: &Endpoint,
    options: &DialOptions,
    history: &RefCell<AddressHistory>,
) -> Result<Vec<DialAddress>, Error> {
    match endpoint.target() {
        Target::Unix(path) => Ok(vec![DialAddress::Unix(path.clone())]),
        Target::Tcp { host, port } => {
            let found = options.resolver.lookup(host, *port).await;
            let found = found.map_err(|error| unreachable(endpoint, &error))?;
            let ordered = history.borrow().order(found, Instant::now());
            Ok(ordered.into_iter().map(DialAddress::Tcp).collect())
        }
    }
}

/// Connects to one address of an endpoint and performs the TLS and HTTP/2 handshakes. The caller applies the connect
/// timeout.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    address: &DialAddress,
    options: &DialOptions,
) -> Result<NewConnection, Error> {
    let socket = connect(address)
        .await
        .map_err(|error| unreachable(endpoint, &error))?;
    let registration = options.follow_callers.then(|| socket.registration());
    let socket: BoxedSocket = if endpoint.is_tls() {
        let encrypted = options.tls.encrypt(endpoint, socket).await;
        Box::new(encrypted.map_err(|error| error.with_endpoint(endpoint.name()))?)
    } else {
        Box::new(socket)
    };
    handshake(endpoint, socket, registration, options).await
}

pub(super) async fn connect(address: &DialAddress) -> io::Result<MovableSocket> {
    let socket = match address {
        DialAddress::Unix(path) => RegisteredSocket::Unix(UnixStream::connect(path).await?),
        DialAddress::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            RegisteredSocket::Tcp(stream)
        }
    };
    Ok(MovableSocket::new(socket))
}

pub(super) async fn handshake(
    endpoint: &Endpoint,
    socket: BoxedSocket,
    registration: Option<SocketRegistration>,
    options: &DialOptions,
) -> Result<NewConnection, Error> {
    let wire_log = WireLog::new();
    let io = LoggedIo::new(socket, wire_log.clone());
    let (requests, mut connection) = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_local_error_reset_streams(None)
        .enable_push(false)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(|error| handshake_failed(endpoint, error))?;
    let monitor = ChannelMonitor::new(endpoint.clone(), wire_log, options.max_response_size);
    let pinger = Pinger::new(connection.ping_pong(), monitor.clone(), endpoint, options);
    let connection = SharedConnection::new(connection, monitor.clone(), registration);
    Ok(NewConnection {
        channel: Channel::new(requests, connection.clone(), monitor),
        driver: Driver::new(connection, pinger),
    })
}

fn unreachable(endpoint: &Endpoint, error: &io::Error) -> Error {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => format!("cannot connect ({error})"),
    };
    Error::new(ErrorKind::Unavailable, Outcome::NotSent, reason).with_endpoint(endpoint.name())
}

fn handshake_failed(endpoint: &Endpoint, error: h2::Error) -> Error {
    let reason = format!("the HTTP/2 handshake failed ({error})");
    Error::new(ErrorKind::Protocol, Outcome::NotSent, reason)
        .with_endpoint(endpoint.name())
        .with_source(error)
}
