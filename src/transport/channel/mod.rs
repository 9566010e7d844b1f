//! One HTTP/2 connection as callers use it: requests go straight from the caller's task into h2.

mod stream;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{
    RecvStream,
    client::{ResponseFuture, SendRequest},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version, uri::PathAndQuery};
use prost::Message;
use tokio::sync::{Notify, Semaphore};

use super::{
    endpoint::Endpoint,
    grpc::{self, Failure, HeadVerdict, MessageReader, ReadFault},
    wire::WireLog,
};
use crate::error::{Error, ErrorKind, Outcome};
pub(crate) use stream::{StreamReceiver, StreamSender};

const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("actix-etcd/", env!("CARGO_PKG_VERSION")));

/// Streams that live as long as the connection (watches, keepalives, health) and need room beside the requests.
const STANDING_STREAMS: usize = 8;

// Names that are parsed once, not with every request.
const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");
const TOKEN: HeaderName = HeaderName::from_static("token");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// As many as a request has at the most. A larger map would cross the size up to which an allocator is fast.
const HEADERS: usize = 6;

/// What goes along with a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metadata {
    /// Refuse rather than wait where the member knows of no leader.
    pub(crate) require_leader: bool,
    /// The authentication token.
    pub(crate) token: Option<HeaderValue>,
    /// How long the member should work on it at the most.
    pub(crate) timeout: Option<Duration>,
}

/// A handle on one HTTP/2 connection; clones share it.
#[derive(Clone)]
pub(crate) struct Channel {
    requests: SendRequest<Bytes>,
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: Endpoint,
    log: Arc<WireLog>,
    response_limit: usize,
    streams: AtomicUsize,
    /// Where the member limits the streams of a connection: requests wait here, not in h2, so that it stays known
    /// that they were not sent.
    room: OnceLock<Semaphore>,
    /// The connection takes no request any more: after a GOAWAY, or when its stream ids are used up.
    refuses: AtomicBool,
    refused: Notify,
}

impl Shared {
    fn refuse(&self) {
        if !self.refuses.swap(true, Ordering::Relaxed) {
            self.refused.notify_one();
        }
    }
}

/// How many requests and streams are open on a connection.
#[derive(Clone)]
pub(crate) struct OpenStreams(Arc<Shared>);

impl OpenStreams {
    pub(crate) fn count(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    /// Resolves when the connection was found to take no more requests. For one listener, once.
    pub(crate) async fn refused(&self) {
        self.0.refused.notified().await;
    }
}

/// How far a request has got, for who gives up on it.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    stream: AtomicU32,
    answering: AtomicBool,
}

impl Sent {
    /// Whether h2 has it, so that it may be written at any time.
    pub(crate) fn is_taken(&self) -> bool {
        self.stream.load(Ordering::Relaxed) != 0
    }

    /// Whether its answer has begun to arrive.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }
}

/// Counts a stream for as long as it is open.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.streams.fetch_add(1, Ordering::Relaxed);
        Self(shared.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Channel {
    pub(crate) fn new(
        requests: SendRequest<Bytes>,
        endpoint: Endpoint,
        log: Arc<WireLog>,
        response_limit: usize,
    ) -> Self {
        let shared = Arc::new(Shared {
            endpoint,
            log,
            response_limit,
            streams: AtomicUsize::new(0),
            room: OnceLock::new(),
            refuses: AtomicBool::new(false),
            refused: Notify::new(),
        });
        Self { requests, shared }
    }

    /// A count of what is open on this connection that does not keep the connection open itself.
    pub(crate) fn open_streams(&self) -> OpenStreams {
        OpenStreams(self.shared.clone())
    }

    /// Takes note of how many streams the member allows; it has told by its first answer.
    pub(crate) fn learn_limits(&self) {
        let allowed = self.requests.current_max_send_streams();
        if allowed < Semaphore::MAX_PERMITS {
            let room = allowed.saturating_sub(STANDING_STREAMS).max(1);
            let _ = self.shared.room.set(Semaphore::new(room));
        }
    }

    /// Where a request has to wait for its turn first, if the member limits the streams of a connection.
    pub(crate) fn room(&self) -> Option<&Semaphore> {
        self.shared.room.get()
    }

    /// Whether another request can be sent on it, as far as is known.
    pub(crate) fn takes_requests(&self) -> bool {
        !self.shared.refuses.load(Ordering::Relaxed)
    }

    pub(crate) fn wire(&self) -> &WireLog {
        &self.shared.log
    }

    /// One request, one answer. `sent` tells how far it got.
    pub(crate) async fn unary<M: Message + Default>(
        &self,
        path: &'static str,
        metadata: &Metadata,
        body: Bytes,
        sent: &Sent,
    ) -> Result<M, Failure> {
        let _open = Open::new(&self.shared);
        let (response, mut request) = self.start(path, metadata)?;
        let stream = request.stream_id().as_u32();
        sent.stream.store(stream, Ordering::Relaxed);
        if let Err(error) = request.send_data(body, true) {
            return Err(self.broken(error, stream).await.into());
        }
        let mut reader = self.head(response, stream).await?;
        sent.answering.store(true, Ordering::Relaxed);
        let message = match reader.next().await {
            Ok(message) => message,
            Err(fault) => return Err(self.read_fault(fault).into()),
        };
        match reader.status().await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Err(self.located(failure)),
            Err(fault) => return Err(self.read_fault(fault).into()),
        }
        let Some(message) = message else {
            return Err(self.at(grpc::protocol("the answer has no message")).into());
        };
        grpc::decode(message).map_err(|error| self.at(error).into())
    }

    fn start(
        &self,
        path: &'static str,
        metadata: &Metadata,
    ) -> Result<(ResponseFuture, h2::SendStream<Bytes>), Error> {
        self.send_head(self.request(path, metadata)?)
    }

    /// Starts a request that somebody else made; only its address is ours.
    pub(crate) fn start_request(
        &self,
        mut request: Request<()>,
    ) -> Result<(ResponseFuture, h2::SendStream<Bytes>), Error> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() =
            self.address(path.unwrap_or_else(|| PathAndQuery::from_static("/")))?;
        *request.version_mut() = Version::HTTP_2;
        request
            .headers_mut()
            .insert(http::header::USER_AGENT, USER_AGENT);
        self.send_head(request)
    }

    fn send_head(
        &self,
        request: Request<()>,
    ) -> Result<(ResponseFuture, h2::SendStream<Bytes>), Error> {
        let mut requests = self.requests.clone();
        requests.send_request(request, false).map_err(|error| {
            self.shared.refuse();
            let text = format!("the connection takes no more requests ({error})");
            self.at(
                Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, text).with_source(error),
            )
        })
    }

    fn address(&self, path: PathAndQuery) -> Result<http::Uri, Error> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.shared.endpoint.scheme().clone());
        parts.authority = Some(self.shared.endpoint.authority().clone());
        parts.path_and_query = Some(path);
        http::Uri::from_parts(parts)
            .map_err(|error| Error::invalid("the request has no valid address").with_source(error))
    }

    fn request(&self, path: &'static str, metadata: &Metadata) -> Result<Request<()>, Error> {
        let uri = self.address(PathAndQuery::from_static(path))?;
        let mut headers = HeaderMap::with_capacity(HEADERS);
        headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        );
        headers.insert(http::header::USER_AGENT, USER_AGENT);
        if metadata.require_leader {
            headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
        }
        if let Some(token) = &metadata.token {
            headers.insert(TOKEN, token.clone());
        }
        if let Some(timeout) = metadata.timeout {
            headers.insert(GRPC_TIMEOUT, grpc_timeout(timeout));
        }
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn head(&self, response: ResponseFuture, stream: u32) -> Result<MessageReader, Failure> {
        let response = match response.await {
            Ok(response) => response,
            Err(error) => return Err(self.broken(error, stream).await.into()),
        };
        let (head, body) = response.into_parts();
        self.answer(&head, body)
    }

    fn answer(
        &self,
        head: &http::response::Parts,
        body: RecvStream,
    ) -> Result<MessageReader, Failure> {
        match grpc::head_verdict(head.status, &head.headers) {
            HeadVerdict::Ended(Err(failure)) => Err(self.located(failure)),
            verdict => Ok(MessageReader::new(
                body,
                self.shared.response_limit,
                matches!(verdict, HeadVerdict::Ended(Ok(()))),
            )),
        }
    }

    fn read_fault(&self, fault: ReadFault) -> Error {
        match fault {
            ReadFault::Broken(error) => self.cut(error),
            ReadFault::Refused(error) => self.at(error),
        }
    }

    /// Tells what a broken stream means for its request. Nothing the server writes into a status can make
    /// this say "not sent": only the protocol's own promises and what our socket has seen count.
    pub(crate) async fn broken(&self, error: h2::Error, stream: u32) -> Error {
        if error.is_go_away() {
            self.shared.refuse();
        }
        let promised = error.is_remote()
            && (error.is_go_away()
                || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)));
        if promised || (!error.is_remote() && self.shared.log.never_sent(stream).await) {
            let text = format!("the connection ended before the request was taken ({error})");
            let lost = Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, text);
            return self.at(lost.with_source(error));
        }
        self.cut(error)
    }

    /// A request that had been answered in part, so that it was taken for certain.
    pub(crate) fn cut(&self, error: h2::Error) -> Error {
        let text = format!("the connection broke while the request was under way ({error})");
        let lost = Error::new(ErrorKind::ConnectionLost, Outcome::Unknown, text);
        self.at(lost.with_source(error))
    }

    fn located(&self, failure: Failure) -> Failure {
        Failure {
            error: self.at(failure.error),
            pushback: failure.pushback,
        }
    }

    fn at(&self, error: Error) -> Error {
        error.with_endpoint(self.shared.endpoint.name())
    }
}

/// Whether it is about one stream alone, which was reset or had ended before something was sent. Its connection may be
/// well; one that is not says so itself.
pub(crate) fn is_of_stream(error: &Error) -> bool {
    let cause =
        std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    // What is neither the peer's nor the socket's is our own: sending on a stream that is gone.
    cause.is_some_and(|cause| cause.is_reset() || (cause.reason().is_none() && !cause.is_io()))
}

/// gRPC allows eight digits; milliseconds reach from 1 ms to a day.
fn grpc_timeout(timeout: Duration) -> HeaderValue {
    let mut millis = timeout.as_millis().clamp(1, 99_999_999);
    let mut text = *b"00000000m";
    let mut first = text.len() - 1;
    while millis > 0 {
        first -= 1;
        text[first] = b'0' + u8::try_from(millis % 10).unwrap_or(0);
        millis /= 10;
    }
    HeaderValue::from_bytes(&text[first..])
        .unwrap_or_else(|_| HeaderValue::from_static("99999999m"))
}

#[cfg(test)]
mod tests;
