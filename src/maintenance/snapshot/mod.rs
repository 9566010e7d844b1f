//! A copy of a member's whole database, as a stream or as a file.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let saved = etcd
//!     .maintenance()
//!     .snapshot_to("backup.db")
//!     .progress(|progress| println!("{} of {} bytes", progress.received, progress.total))
//!     .await?;
//! println!("{} bytes", saved.size);
//! # Ok(())
//! # }
//! ```

mod checksum;
mod file;

pub use file::{SavedSnapshot, SnapshotToFile};

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_stream::Stream;

use self::checksum::ChecksumVerifier;
use super::Maintenance;
use crate::{
    call::{MAX_TIMEOUT, tokens::Tokens},
    connection::{Connection, token::Token},
    error::{Error, ErrorKind, Outcome, Result},
    proto::{SnapshotRequest, SnapshotResponse, rpc},
    request::{ClientHandle, response_stream::OpenStream},
    retry::{RetryDecision, decision::remedy},
    runtime::backoff::Backoff,
    transport::Endpoint,
};

/// Delay between attempts to start a snapshot.
const START_BACKOFF: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(60));
/// Longest time without data.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);

impl<C: ClientHandle> Maintenance<C> {
    /// Streams a copy of a member's database, followed by its checksum. Written to a file, this is the input of
    /// `etcdutl snapshot restore`.
    ///
    /// If the member fails before the first byte, the snapshot starts on another one. A later failure or a wrong
    /// checksum ends the stream with an error. Use the data only if the stream ended without an error.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::start(&self.0, &mut Vec::new()).await
    }
}

/// Progress of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotProgress {
    /// Bytes received so far.
    pub received: u64,
    /// Bytes in total, including the checksum.
    pub total: u64,
}

/// A stream of the bytes of a snapshot; see [`Maintenance::snapshot`].
#[must_use = "a stream does nothing until it is read"]
pub struct Snapshot {
    member: Endpoint,
    version: Option<String>,
    progress: SnapshotProgress,
    checksum: ChecksumVerifier,
    progress_timeout: Duration,
    state: SnapshotState,
}

type PendingRead = Pin<
    Box<
        dyn Future<
                Output = (
                    Result<Option<SnapshotResponse>>,
                    OpenStream<SnapshotResponse>,
                ),
            > + Send,
    >,
>;

enum SnapshotState {
    First(Bytes, Box<OpenStream<SnapshotResponse>>),
    Reading(PendingRead),
    Ended,
}

impl Snapshot {
    /// Starts on a member that is not in `failed`, if there is one. Adds members that fail.
    async fn start(client: &impl ClientHandle, failed: &mut Vec<Endpoint>) -> Result<Self> {
        let caller = client.caller();
        let deadline = Instant::now() + client.request_timeout();
        let mut backoff = START_BACKOFF.start();
        loop {
            let token = caller.tokens.current(deadline).await?;
            let connection = caller.connection_avoiding(failed, deadline).await?;
            let tokens = (caller.tokens.clone(), token.clone());
            let error = match first_response(&connection, tokens, deadline).await {
                Ok((response, opened)) => {
                    return Ok(Self::new(response, opened, connection.endpoint.clone()));
                }
                Err(error) => error,
            };
            match remedy(error.kind()) {
                RetryDecision::RenewToken => {
                    let tokens = &caller.tokens;
                    if !tokens.renewed(&token, error.kind(), deadline).await? {
                        return Err(error);
                    }
                }
                RetryDecision::NextMember | RetryDecision::Backoff => {
                    let delay = backoff.next_delay(0.5);
                    if Instant::now() + delay >= deadline {
                        return Err(error);
                    }
                    failed.push(connection.endpoint.clone());
                    sleep(delay).await;
                }
                RetryDecision::After(_) | RetryDecision::Fail => return Err(error),
            }
        }
    }

    fn new(
        first: SnapshotResponse,
        opened: OpenStream<SnapshotResponse>,
        member: Endpoint,
    ) -> Self {
        // Saturating: the member can announce any length.
        let announced = first
            .remaining_bytes
            .saturating_add(first.blob.len() as u64);
        Self {
            member,
            version: Some(first.version).filter(|version| !version.is_empty()),
            progress: SnapshotProgress {
                received: 0,
                total: announced.saturating_add(ChecksumVerifier::LENGTH as u64),
            },
            checksum: ChecksumVerifier::default(),
            progress_timeout: PROGRESS_TIMEOUT,
            state: SnapshotState::First(first.blob, Box::new(opened)),
        }
    }

    /// Longest time that the stream waits for data. After that, it ends with
    /// [`ErrorKind::MemberUnresponsive`]. Default: 10 s.
    pub fn progress_timeout(mut self, timeout: Duration) -> Self {
        self.progress_timeout = timeout.min(MAX_TIMEOUT);
        self
    }

    fn endpoint(&self) -> &Endpoint {
        &self.member
    }

    /// Returns the version of etcd to restore the snapshot with. Since etcd 3.6; `None` before.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> SnapshotProgress {
        self.progress
    }

    /// Returns the next bytes; `None` after the last byte, if the checksum is right.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Adds received bytes to the checksum and the progress.
    fn record(&mut self, blob: Bytes) -> Bytes {
        self.checksum.update(&blob);
        self.progress.received += blob.len() as u64;
        blob
    }

    fn finish(&mut self) -> Option<Result<Bytes>> {
        let verified = self.checksum.finish();
        verified.err().map(|reason| Err(corrupt(reason)))
    }
}

async fn first_response(
    connection: &Arc<Connection>,
    tokens: (Tokens, Token),
    deadline: Instant,
) -> Result<(SnapshotResponse, OpenStream<SnapshotResponse>)> {
    let mut opened: OpenStream<SnapshotResponse> =
        OpenStream::new(connection, tokens, rpc::SNAPSHOT, &SnapshotRequest {})?;
    match timeout_at(deadline, opened.next()).await {
        Ok(Ok(Some(response))) => Ok((response, opened)),
        Ok(Ok(None)) => Err(corrupt("it is empty")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            Outcome::Unknown,
            "the member did not start to send the snapshot in time",
        )),
    }
}

fn corrupt(reason: &'static str) -> Error {
    let text = format!("the snapshot is corrupt: {reason}");
    Error::new(ErrorKind::Protocol, Outcome::Unknown, text).with_rpc(rpc::SNAPSHOT)
}

fn stalled(limit: Duration) -> Error {
    let text = format!("the member sent no data of the snapshot for {limit:?}");
    Error::new(ErrorKind::MemberUnresponsive, Outcome::Unknown, text).with_rpc(rpc::SNAPSHOT)
}

fn read(mut opened: OpenStream<SnapshotResponse>, limit: Duration) -> PendingRead {
    Box::pin(async move {
        let next = timeout(limit, opened.next()).await;
        (next.unwrap_or_else(|_| Err(stalled(limit))), opened)
    })
}

impl Stream for Snapshot {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let this = &mut *self;
        match std::mem::replace(&mut this.state, SnapshotState::Ended) {
            SnapshotState::Ended => Poll::Ready(None),
            SnapshotState::First(blob, opened) => {
                this.state = SnapshotState::Reading(read(*opened, this.progress_timeout));
                Poll::Ready(Some(Ok(this.record(blob))))
            }
            SnapshotState::Reading(mut reading) => match reading.as_mut().poll(cx) {
                Poll::Pending => {
                    this.state = SnapshotState::Reading(reading);
                    Poll::Pending
                }
                Poll::Ready((Ok(Some(response)), opened)) => {
                    this.state = SnapshotState::Reading(read(opened, this.progress_timeout));
                    Poll::Ready(Some(Ok(this.record(response.blob))))
                }
                Poll::Ready((Ok(None), _)) => Poll::Ready(this.finish()),
                Poll::Ready((Err(error), _)) => Poll::Ready(Some(Err(error))),
            },
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("version", &self.version)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}
