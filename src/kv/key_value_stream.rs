//! Reading a range of any size as a stream of keys and values, at one revision.
//!
//! A background task reads ahead: it fetches the next part of the range while the application handles the current one.
//! Its first request is a small page, whose response has the revision of the whole stream. The task then reads the rest
//! with the RPC `RangeStream`, which etcd has since 3.7, or page by page. After any failure of a `RangeStream`, the
//! next request is a page again: like every read it is retried on other members, and it reports permanent errors.
//!
//! ```text
//! page ──> RangeStream ──message──> RangeStream … ──> end
//!  ^            │ failure or timeout
//!  └────────────┘          (3 failures without a key: pages only)
//! ```

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::Stream;

use super::{
    Get, KeyValue, ResponseHeader,
    page_size::{FIRST_PAGE, MAX_KEYS, next_page_size, page_size_after_timeout},
    pages::successor,
    revision_filter::RevisionFilter,
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    proto::{RangeStreamResponse, rpc},
    request::{ClientHandle, ResponseStream},
    runtime::abort_on_drop::AbortOnDrop,
};

/// Parts of the range that wait for the application, besides the part that it reads and the part that is received.
const PARTS_AHEAD: usize = 1;
/// Failures of `RangeStream` without a single key in between, after which only pages are used.
const MAX_STREAM_FAILURES: u32 = 3;

/// A stream of keys and values in ascending order of keys; see [`Get::stream`]. It ends after the last key or the first
/// error.
///
/// Reading starts with the first poll, in a task on the current tokio runtime; dropping the stream stops it.
#[must_use = "a stream does nothing until it is read"]
pub struct KeyValueStream {
    state: ReaderState,
    parts: mpsc::Receiver<Result<RangePart>>,
    current: std::vec::IntoIter<KeyValue>,
    revision: Option<i64>,
}

enum ReaderState {
    /// The reader of the range, which the first poll starts.
    Unstarted(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// With the task of the reader, which stops when dropped.
    Reading(AbortOnDrop),
    Ended,
}

/// Consecutive keys of the range.
struct RangePart {
    kvs: Vec<KeyValue>,
    revision: i64,
    /// Whether no key follows. Without a last part, the reader was stopped in the middle of the range.
    last: bool,
}

impl KeyValueStream {
    pub(super) fn new<C: ClientHandle>(
        range: Get<C>,
        filter: RevisionFilter,
        client: C,
        timeout: Duration,
        invalid: Option<Error>,
    ) -> Self {
        let (sender, parts) = mpsc::channel(PARTS_AHEAD);
        let reader = RangeReader {
            next: range,
            filter,
            client,
            timeout,
            page_size: FIRST_PAGE,
            largest_page: MAX_KEYS,
            revision: 0,
            cluster: 0,
            stream: None,
            stream_complete: false,
            stream_failures: 0,
            ended: false,
        };
        Self {
            state: ReaderState::Unstarted(match invalid {
                Some(error) => Box::pin(async move {
                    let _ = sender.send(Err(error.with_rpc(rpc::RANGE))).await;
                }),
                None => Box::pin(reader.send_parts_to(sender)),
            }),
            parts,
            current: Vec::new().into_iter(),
            revision: None,
        }
    }

    /// Returns the next key and value; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<KeyValue>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns the revision of all keys and values, known once the first response has been read.
    pub fn revision(&self) -> Option<i64> {
        self.revision
    }
}

impl Stream for KeyValueStream {
    type Item = Result<KeyValue>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(kv) = self.current.next() {
            return Poll::Ready(Some(Ok(kv)));
        }
        loop {
            match std::mem::replace(&mut self.state, ReaderState::Ended) {
                ReaderState::Unstarted(reader) => {
                    self.state = ReaderState::Reading(tokio::spawn(reader).into());
                }
                ReaderState::Reading(task) => match self.parts.poll_recv(cx) {
                    Poll::Pending => {
                        self.state = ReaderState::Reading(task);
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => return Poll::Ready(Some(Err(reader_stopped()))),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(Some(Ok(part))) => {
                        if !part.last {
                            self.state = ReaderState::Reading(task);
                        }
                        self.revision = Some(part.revision);
                        self.current = part.kvs.into_iter();
                        if let Some(kv) = self.current.next() {
                            return Poll::Ready(Some(Ok(kv)));
                        }
                    }
                },
                ReaderState::Ended => return Poll::Ready(None),
            }
        }
    }
}

fn reader_stopped() -> Error {
    let reason = "the task that reads the range ended without a result";
    Error::new(ErrorKind::Internal, Outcome::NotSent, reason).with_rpc(rpc::RANGE)
}

impl fmt::Debug for KeyValueStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueStream")
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

/// One message of a `RangeStream`.
struct StreamedKeys {
    kvs: Vec<KeyValue>,
    /// Present in the last message.
    header: Option<ResponseHeader>,
}

impl TryFrom<RangeStreamResponse> for StreamedKeys {
    type Error = Error;

    fn try_from(response: RangeStreamResponse) -> Result<Self> {
        let range = response.range_response.unwrap_or_default();
        Ok(Self {
            kvs: range.kvs,
            header: range.header,
        })
    }
}

/// Reads the range part by part.
struct RangeReader<C> {
    /// The range from the first key that was not read yet.
    next: Get<C>,
    filter: RevisionFilter,
    client: C,
    /// Longest time without a message of a `RangeStream`. Pages have the timeout of the request.
    timeout: Duration,
    /// Number of keys of the next page.
    page_size: i64,
    /// Largest number of keys of a page that arrives within the timeout.
    largest_page: i64,
    /// Revision of the stream; 0 before the first response.
    revision: i64,
    /// Cluster that the keys come from; 0 before the first response. With `follow_cluster_change` it can change.
    cluster: u64,
    stream: Option<ResponseStream<StreamedKeys>>,
    /// Whether the last message of the stream has arrived.
    stream_complete: bool,
    stream_failures: u32,
    ended: bool,
}

impl<C: ClientHandle> RangeReader<C> {
    async fn send_parts_to(mut self, parts: mpsc::Sender<Result<RangePart>>) {
        while !self.ended {
            let part = self.read_part().await;
            self.ended |= part.is_err();
            if parts.send(part).await.is_err() {
                return;
            }
        }
    }

    async fn read_part(&mut self) -> Result<RangePart> {
        // The first page has the revision.
        if self.stream.is_none() && self.revision != 0 {
            self.open_stream().await;
        }
        if let Some(mut stream) = self.stream.take() {
            // A stream that stalls and one that fails are treated alike: the next page returns a permanent error.
            match timeout(self.timeout, stream.next()).await {
                Ok(Some(Ok(StreamedKeys { mut kvs, header }))) => {
                    self.client.view().remove_prefix(&mut kvs);
                    if let Some(header) = header {
                        self.check_cluster(&header)?;
                        self.stream_complete = true;
                    }
                    self.stream = Some(stream);
                    if let Some(last) = kvs.last() {
                        self.stream_failures = 0;
                        self.continue_after(&last.key.clone())?;
                    }
                    return Ok(self.part(kvs));
                }
                Ok(None) if self.stream_complete => {
                    self.ended = true;
                    return Ok(self.part(Vec::new()));
                }
                Ok(Some(Err(error))) if error.kind() == ErrorKind::Unimplemented => {
                    self.stream_failures = MAX_STREAM_FAILURES;
                }
                Ok(None | Some(Err(_))) | Err(_) => self.stream_failures += 1,
            }
        }
        self.read_page().await
    }

    async fn read_page(&mut self) -> Result<RangePart> {
        loop {
            let error = match self.next.clone().limit(self.page_size).await {
                Ok(page) => {
                    self.check_cluster(&page.header)?;
                    if self.revision == 0 {
                        self.revision = match self.next.wire()?.revision {
                            0 => page.header.revision,
                            requested => requested,
                        };
                    }
                    match page.kvs.last().filter(|_| page.more) {
                        None => self.ended = true,
                        Some(last) => {
                            self.continue_after(&last.key)?;
                            let size = size_of(&page.kvs);
                            self.page_size = next_page_size(self.page_size, page.kvs.len(), size)
                                .min(self.largest_page);
                        }
                    }
                    return Ok(self.part(page.kvs));
                }
                Err(error) => error,
            };
            match error.kind() {
                // A member that lags behind does not have the revision of the first page yet; a quorum has.
                ErrorKind::FutureRevision => match self.next.clone().linearizable() {
                    Some(next) => self.next = next,
                    None => return Err(error),
                },
                ErrorKind::ResponseTooLarge if self.page_size > 1 => self.page_size /= 2,
                // The page may be too large for a slow path. If a single key fails, too, that error is returned.
                ErrorKind::DeadlineExceeded if self.page_size > 1 => {
                    self.largest_page = self.page_size / 2;
                    self.page_size = page_size_after_timeout(self.page_size);
                }
                _ => return Err(error),
            }
        }
    }

    /// Starts to stream the rest of the range, unless members do not support that or it failed repeatedly.
    async fn open_stream(&mut self) {
        if self.stream_failures >= MAX_STREAM_FAILURES {
            return;
        }
        let Ok(mut request) = self.next.wire() else {
            return;
        };
        self.client.view().add_prefix(&mut request);
        let opened = ResponseStream::open::<_, RangeStreamResponse>(
            &self.client,
            rpc::RANGE_STREAM,
            request,
            None,
        );
        self.stream_complete = false;
        match timeout(self.timeout, opened).await {
            Ok(Ok(stream)) => self.stream = Some(stream),
            Ok(Err(_)) | Err(_) => self.stream_failures += 1,
        }
    }

    fn continue_after(&mut self, key: &[u8]) -> Result<()> {
        self.next = self.next.clone().continued(successor(key), self.revision)?;
        // Not valid only if no key can follow: the range ends directly after this key.
        self.ended |= self.next.wire().is_err();
        Ok(())
    }

    /// Fails if a response comes from another cluster than the first one: revisions of two clusters have nothing in
    /// common.
    fn check_cluster(&mut self, header: &ResponseHeader) -> Result<()> {
        if self.cluster == 0 {
            self.cluster = header.cluster_id;
        }
        if self.cluster == header.cluster_id {
            return Ok(());
        }
        let reason = "the client changed to another cluster before the whole range was read";
        Err(Error::new(ErrorKind::ClusterChanged, Outcome::NotSent, reason).with_rpc(rpc::RANGE))
    }

    fn part(&self, mut kvs: Vec<KeyValue>) -> RangePart {
        kvs.retain(|kv| self.filter.allows(kv));
        RangePart {
            kvs,
            revision: self.revision,
            last: self.ended,
        }
    }
}

fn size_of(kvs: &[KeyValue]) -> usize {
    kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum()
}
