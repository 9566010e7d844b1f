//! Opens an HTTP/2 connection to an endpoint.

use std::{io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::client;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
};

use super::{
    channel::Channel,
    driver::Driver,
    endpoint::{Endpoint, Target},
    tls::Tls,
    wire_log::{LoggedIo, WireLog},
};
use crate::error::{Error, ErrorKind, Outcome};

/// Large enough that a response of several megabytes does not wait for window updates.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// h2 closes a connection whose small DATA frames exceed this budget. A busy watch consists of small frames, and the
/// windows above limit the memory already.
const SMALL_FRAME_BUDGET: usize = 64 << 20;
/// Number of cancelled streams that h2 remembers, so that late frames for them are not protocol errors.
const REMEMBERED_RESETS: usize = 1024;
/// Delay before the next address of a host name is tried while earlier attempts are still open.
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(250);

/// Settings of new connections.
#[derive(Debug, Clone)]
pub(crate) struct DialOptions {
    pub(crate) connect_timeout: Duration,
    pub(crate) max_response_size: usize,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) ping_timeout: Duration,
    pub(crate) tls: Tls,
}

pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

pub(super) type BoxedSocket = Box<dyn Socket>;

/// A connection after its handshake. It makes progress only while the driver is polled.
pub(crate) struct NewConnection {
    pub(crate) channel: Channel,
    pub(crate) driver: Driver,
}

/// Connects to an endpoint and performs the TLS and HTTP/2 handshakes. The caller applies the connect timeout.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    options: &DialOptions,
) -> Result<NewConnection, Error> {
    let socket = connect(endpoint)
        .await
        .map_err(|error| unreachable(endpoint, &error))?;
    let socket = if endpoint.is_tls() {
        let encrypted = options.tls.encrypt(endpoint, socket).await;
        Box::new(encrypted.map_err(|error| error.with_endpoint(endpoint.name()))?)
    } else {
        socket
    };
    handshake(endpoint, socket, options).await
}

async fn connect(endpoint: &Endpoint) -> io::Result<BoxedSocket> {
    match endpoint.target() {
        Target::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Target::Tcp { host, port } => {
            let addresses: Vec<_> = lookup_host((host.as_str(), *port)).await?.collect();
            let stream = connect_any(addresses).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}

/// Tries the addresses of a host name in order. Starts the next attempt when one fails, or [`NEXT_ADDRESS_DELAY`] after
/// the previous one started. Returns the first connection.
async fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = tokio::task::JoinSet::new();
    let mut last_error = io::Error::new(
        io::ErrorKind::NotFound,
        "the host name resolves to no address",
    );
    let mut addresses = addresses.into_iter();
    loop {
        let next = addresses.next();
        let has_next = next.is_some();
        if let Some(address) = next {
            attempts.spawn(TcpStream::connect(address));
        }
        let delay = if has_next {
            NEXT_ADDRESS_DELAY
        } else {
            Duration::MAX
        };
        match tokio::time::timeout(delay, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
            Ok(Some(Ok(Err(error)))) => last_error = error,
            Ok(Some(Err(join_error))) => last_error = io::Error::other(join_error),
            Ok(None) if !has_next => return Err(last_error),
            Ok(None) | Err(_) => {}
        }
    }
}

async fn handshake(
    endpoint: &Endpoint,
    socket: BoxedSocket,
    options: &DialOptions,
) -> Result<NewConnection, Error> {
    let wire_log = WireLog::new();
    let io = LoggedIo::new(socket, wire_log.clone());
    let (requests, connection) = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_local_error_reset_streams(None)
        .enable_push(false)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(|error| handshake_failed(endpoint, error))?;
    let channel = Channel::new(
        requests,
        endpoint.clone(),
        wire_log,
        options.max_response_size,
    );
    let driver = Driver::new(connection, &channel, options);
    Ok(NewConnection { channel, driver })
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
