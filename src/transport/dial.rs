//! From an endpoint to a working HTTP/2 connection, within a time-out.

use std::{future::Future, io, pin::Pin, task::Poll, time::Duration};

use bytes::Bytes;
use h2::{Ping, client};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    channel::{Channel, OpenStreams},
    endpoint::{Endpoint, Target},
    tls::Tls,
    wire::{ObservedIo, WireLog},
};
use crate::error::{Error, ErrorKind, Outcome};

/// Large enough that a range of megabytes needs no window update round trips.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// h2 counts small DATA frames against a budget and closes the connection when it is used up. A busy watch
/// is made of small frames; the windows above bound the memory already.
const SMALL_FRAMES: usize = 64 << 20;
/// Streams that callers gave up on are remembered so that late answers are recognized.
const REMEMBERED_RESETS: usize = 1024;
/// A second address of a name is tried when the first one has not answered by then.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// How connections are made and kept.
#[derive(Debug, Clone)]
pub(crate) struct DialOptions {
    pub(crate) connect_timeout: Duration,
    pub(crate) max_response_size: usize,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) ping_timeout: Duration,
    pub(crate) tls: Tls,
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

type BoxedSocket = Box<dyn Socket>;

/// A connection and the future that drives it: nothing moves unless it is polled.
pub(crate) struct Dialled {
    pub(crate) channel: Channel,
    pub(crate) driver: Driver,
}

/// Dials and shakes hands. The caller bounds the time.
pub(crate) async fn dial(endpoint: &Endpoint, options: &DialOptions) -> Result<Dialled, Error> {
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
            let stream = race(addresses).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}

/// Tries the addresses of a name one after the other, each a little later, and keeps the first that answers.
async fn race(addresses: Vec<std::net::SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = tokio::task::JoinSet::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut addresses = addresses.into_iter();
    loop {
        let next = addresses.next();
        let more = next.is_some();
        if let Some(address) = next {
            attempts.spawn(TcpStream::connect(address));
        }
        let patience = if more {
            NEXT_ADDRESS_AFTER
        } else {
            Duration::MAX
        };
        match tokio::time::timeout(patience, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
            Ok(Some(Ok(Err(error)))) => failure = error,
            Ok(Some(Err(join))) => failure = io::Error::other(join),
            Ok(None) if !more => return Err(failure),
            Ok(None) | Err(_) => {}
        }
    }
}

async fn handshake(
    endpoint: &Endpoint,
    socket: BoxedSocket,
    options: &DialOptions,
) -> Result<Dialled, Error> {
    let log = WireLog::new();
    let io = ObservedIo::new(socket, log.clone());
    let (requests, mut connection) = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAMES)
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_local_error_reset_streams(None)
        .enable_push(false)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(|error| no_http2(endpoint, error))?;
    let pings = connection.ping_pong();
    let channel = Channel::new(requests, endpoint.clone(), log, options.max_response_size);
    let keepalive = match (pings, options.ping_interval) {
        (Some(pings), Some(interval)) => Some(Keepalive {
            pings,
            streams: channel.open_streams(),
            interval,
            timeout: options.ping_timeout,
            waiting: false,
            timer: Box::pin(sleep_until(Instant::now() + interval)),
        }),
        _ => None,
    };
    let driver = Driver {
        connection,
        keepalive,
    };
    Ok(Dialled { channel, driver })
}

fn unreachable(endpoint: &Endpoint, error: &io::Error) -> Error {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused; is etcd running there?".to_owned(),
        _ => format!("cannot connect ({error})"),
    };
    Error::new(ErrorKind::Unavailable, Outcome::NotSent, text).with_endpoint(endpoint.name())
}

fn no_http2(endpoint: &Endpoint, error: h2::Error) -> Error {
    let text = format!("the HTTP/2 handshake failed ({error}); is this an etcd client port?");
    Error::new(ErrorKind::Protocol, Outcome::NotSent, text)
        .with_endpoint(endpoint.name())
        .with_source(error)
}

/// Drives a connection until it ends. Dropping it ends the connection at once.
pub(crate) struct Driver {
    connection: client::Connection<ObservedIo<BoxedSocket>, Bytes>,
    keepalive: Option<Keepalive>,
}

impl Future for Driver {
    /// Why the connection ended.
    type Output = String;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<String> {
        match Pin::new(&mut self.connection).poll(cx) {
            Poll::Ready(Ok(())) => {
                return Poll::Ready("the member closed the connection".to_owned());
            }
            Poll::Ready(Err(error)) => return Poll::Ready(error.to_string()),
            Poll::Pending => {}
        }
        match &mut self.keepalive {
            Some(keepalive) => keepalive.poll(cx),
            None => Poll::Pending,
        }
    }
}

/// HTTP/2 pings, the backstop of the application's own probes. Only while streams are open: etcd answers
/// pings on an idle connection with GOAWAY.
struct Keepalive {
    pings: h2::PingPong,
    streams: OpenStreams,
    interval: Duration,
    timeout: Duration,
    waiting: bool,
    timer: Pin<Box<Sleep>>,
}

impl Keepalive {
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<String> {
        loop {
            if self.waiting {
                match self.pings.poll_pong(cx) {
                    Poll::Ready(Ok(_)) => self.rest(),
                    // The connection itself tells its end.
                    Poll::Ready(Err(_)) => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.waiting {
                return Poll::Ready(format!("no answer to a ping for {:?}", self.timeout));
            }
            if self.streams.count() > 0 && self.pings.send_ping(Ping::opaque()).is_ok() {
                self.waiting = true;
                self.timer.as_mut().reset(Instant::now() + self.timeout);
            } else {
                self.rest();
            }
        }
    }

    fn rest(&mut self) {
        self.waiting = false;
        self.timer.as_mut().reset(Instant::now() + self.interval);
    }
}
