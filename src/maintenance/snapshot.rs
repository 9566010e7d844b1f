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

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::Stream;

use super::{Maintenance, snapshot_checksum::Check};
use crate::{
    auth::engine::{Token, Tokens},
    client::Client,
    connection::Connection,
    error::{Error, ErrorKind, Outcome, Result},
    proto::{SnapshotRequest, SnapshotResponse},
    request::response_stream::Opened,
    retry::{RpcClass, table},
    transport::Endpoint,
};

const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
/// Between two attempts to begin, growing.
const PAUSE: Duration = Duration::from_millis(25);

impl Maintenance {
    /// A copy of a member's database as a stream of bytes, the checksum at its end included: written to a file, it is
    /// what `etcdutl snapshot restore` takes.
    ///
    /// Until the first byte, a member that fails is replaced by another one; later, the stream ends with an error. It
    /// also does if the checksum is wrong, so what was read counts only when the stream has ended without one.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::begin(&self.0, &mut Vec::new()).await
    }
}

/// How far a snapshot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes so far.
    pub received: u64,
    /// Bytes in all, the checksum included.
    pub total: u64,
}

/// A snapshot that is being read; see [`Maintenance::snapshot`].
#[must_use = "a stream does nothing until it is read"]
pub struct Snapshot {
    member: Endpoint,
    version: Option<String>,
    progress: Progress,
    check: Check,
    state: State,
}

type Reading = Pin<
    Box<dyn Future<Output = (Result<Option<SnapshotResponse>>, Opened<SnapshotResponse>)> + Send>,
>;

enum State {
    First(Bytes, Box<Opened<SnapshotResponse>>),
    Reading(Reading),
    Done,
}

impl Snapshot {
    /// Begins with one of the members; not with one of those that failed before, as long as there is another.
    pub(super) async fn begin(client: &Client, failed: &mut Vec<Endpoint>) -> Result<Self> {
        let caller = client.caller();
        let deadline = Instant::now() + client.request_timeout();
        let mut pause = PAUSE;
        loop {
            let token = caller.tokens.current(deadline).await?;
            let connection = caller.connection_besides(failed, deadline).await?;
            let using = (caller.tokens.clone(), token.clone());
            let error = match first_answer(&connection, using, deadline).await {
                Ok((answer, opened)) => {
                    return Ok(Self::new(answer, opened, connection.endpoint.clone()));
                }
                Err(error) => error,
            };
            match table::decide(RpcClass::Read, error.kind(), error.outcome()) {
                table::Decision::Refresh => {
                    let tokens = &caller.tokens;
                    if !tokens.renewed(&token, error.kind(), deadline).await? {
                        return Err(error);
                    }
                }
                table::Decision::Retry(_) if Instant::now() + pause < deadline => {
                    failed.push(connection.endpoint.clone());
                    sleep(pause).await;
                    pause *= 2;
                }
                table::Decision::Retry(_) | table::Decision::Fail => return Err(error),
            }
        }
    }

    fn new(first: SnapshotResponse, opened: Opened<SnapshotResponse>, member: Endpoint) -> Self {
        // A member can claim anything.
        let announced = first
            .remaining_bytes
            .saturating_add(first.blob.len() as u64);
        Self {
            member,
            version: Some(first.version).filter(|version| !version.is_empty()),
            progress: Progress {
                received: 0,
                total: announced.saturating_add(Check::LENGTH as u64),
            },
            check: Check::default(),
            state: State::First(first.blob, Box::new(opened)),
        }
    }

    /// Whose database it is.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.member
    }

    /// The version of etcd to restore it with, where the member tells (since etcd 3.6).
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The next bytes; `None` when all have come and the checksum was right.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    fn take(&mut self, blob: Bytes) -> Bytes {
        self.check.update(&blob);
        self.progress.received += blob.len() as u64;
        blob
    }

    fn finish(&mut self) -> Option<Result<Bytes>> {
        let whole = self.check.finish();
        whole.err().map(|why| Err(corrupt(why)))
    }
}

async fn first_answer(
    connection: &Arc<Connection>,
    using: (Tokens, Token),
    deadline: Instant,
) -> Result<(SnapshotResponse, Opened<SnapshotResponse>)> {
    let mut opened: Opened<SnapshotResponse> =
        Opened::new(connection, using, SNAPSHOT, &SnapshotRequest {})?;
    match timeout_at(deadline, opened.next()).await {
        Ok(Ok(Some(answer))) => Ok((answer, opened)),
        Ok(Ok(None)) => Err(corrupt("it is empty")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            Outcome::Unknown,
            "the snapshot did not begin in time",
        )),
    }
}

fn corrupt(why: &'static str) -> Error {
    let text = format!("the snapshot is not whole: {why}");
    Error::new(ErrorKind::Protocol, Outcome::Unknown, text)
}

fn read(mut opened: Opened<SnapshotResponse>) -> Reading {
    Box::pin(async move { (opened.next().await, opened) })
}

impl Stream for Snapshot {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let this = &mut *self;
        match std::mem::replace(&mut this.state, State::Done) {
            State::Done => Poll::Ready(None),
            State::First(blob, opened) => {
                this.state = State::Reading(read(*opened));
                Poll::Ready(Some(Ok(this.take(blob))))
            }
            State::Reading(mut reading) => match reading.as_mut().poll(cx) {
                Poll::Pending => {
                    this.state = State::Reading(reading);
                    Poll::Pending
                }
                Poll::Ready((Ok(Some(answer)), opened)) => {
                    this.state = State::Reading(read(opened));
                    Poll::Ready(Some(Ok(this.take(answer.blob))))
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
