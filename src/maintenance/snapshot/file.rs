//! Saving a snapshot to a file atomically.

use std::{
    fmt,
    future::IntoFuture,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{PROGRESS_TIMEOUT, Snapshot, SnapshotProgress};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    maintenance::Maintenance,
    proto::rpc,
    request::{ClientHandle, ResponseFuture},
    retry::{RetryDecision, decision::remedy},
    runtime::atomic_file::AtomicFile,
    transport::Endpoint,
};

/// Largest number of attempts to save a snapshot, each on another member if there is one.
const ATTEMPTS: u32 = 5;
/// Chunks buffered between the network and the disk.
const BUFFERED_CHUNKS: usize = 16;

impl<C: ClientHandle> Maintenance<C> {
    /// Saves a copy of a member's database to a file that only its owner can read. The data is written to a temporary
    /// file beside it, verified, synced and renamed, so the file is never incomplete. If the member fails, the snapshot
    /// starts again on another one.
    pub fn snapshot_to(&self, path: impl Into<PathBuf>) -> SnapshotToFile<C> {
        SnapshotToFile {
            client: self.0.clone(),
            path: path.into(),
            progress: None,
            progress_timeout: PROGRESS_TIMEOUT,
        }
    }
}

type ProgressCallback = Box<dyn FnMut(SnapshotProgress) + Send>;

/// Saves a snapshot when awaited; see [`Maintenance::snapshot_to`].
#[must_use = "a snapshot is saved when this is awaited"]
pub struct SnapshotToFile<C> {
    client: C,
    path: PathBuf,
    progress: Option<ProgressCallback>,
    progress_timeout: Duration,
}

impl<C: ClientHandle> SnapshotToFile<C> {
    /// Calls a function after every received chunk. The progress starts again at 0 after a failure. Default: none.
    pub fn progress(mut self, callback: impl FnMut(SnapshotProgress) + Send + 'static) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }

    /// Longest time that an attempt waits for data. After that, the snapshot starts again on another member. The last
    /// attempt fails with [`ErrorKind::MemberUnresponsive`](crate::ErrorKind::MemberUnresponsive). Default: 10 s.
    pub fn progress_timeout(mut self, timeout: Duration) -> Self {
        self.progress_timeout = timeout;
        self
    }

    async fn save(mut self) -> Result<SavedSnapshot> {
        let mut attempt = 1;
        let mut failed = Vec::new();
        loop {
            match self.attempt(&mut failed).await {
                Err(error) if attempt < ATTEMPTS && is_transient(&error) => {
                    tracing::warn!(%error, attempt, "snapshot failed, starting again");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Adds the member to the failed ones if the snapshot fails.
    async fn attempt(&mut self, failed: &mut Vec<Endpoint>) -> Result<SavedSnapshot> {
        let snapshot = Snapshot::start(&self.client, failed).await?;
        let mut snapshot = snapshot.progress_timeout(self.progress_timeout);
        let mut file = PartFile::create(&self.path);
        while let Some(bytes) = snapshot.next().await {
            match bytes {
                Ok(bytes) => file.write(bytes).await?,
                Err(error) => {
                    file.discard().await;
                    failed.push(snapshot.endpoint().clone());
                    return Err(error);
                }
            }
            if let Some(callback) = &mut self.progress {
                callback(snapshot.progress());
            }
        }
        file.finish().await?;
        Ok(SavedSnapshot {
            path: std::mem::take(&mut self.path),
            size: snapshot.progress().received,
            version: snapshot.version().map(str::to_owned),
        })
    }
}

fn is_transient(error: &Error) -> bool {
    remedy(error.kind()) != RetryDecision::Fail
}

impl<C: ClientHandle> IntoFuture for SnapshotToFile<C> {
    type Output = Result<SavedSnapshot>;
    type IntoFuture = ResponseFuture<SavedSnapshot>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.save())
    }
}

impl<C> fmt::Debug for SnapshotToFile<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotToFile({})", self.path.display())
    }
}

/// A snapshot saved to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedSnapshot {
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// Version of etcd to restore the snapshot with. Since etcd 3.6; `None` before.
    pub version: Option<String>,
}

enum WriteCommand {
    Append(Bytes),
    /// All data is verified: sync the file and rename it.
    Finish,
}

/// A temporary file beside the final one, written by a blocking task. Removed when dropped unfinished.
struct PartFile {
    commands: mpsc::Sender<WriteCommand>,
    writer: JoinHandle<io::Result<()>>,
    path: PathBuf,
}

impl PartFile {
    fn create(path: &Path) -> Self {
        let (commands, queue) = mpsc::channel(BUFFERED_CHUNKS);
        let target = path.to_owned();
        let writer = tokio::task::spawn_blocking(move || write(&target, queue));
        Self {
            commands,
            writer,
            path: path.to_owned(),
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match self.commands.send(WriteCommand::Append(bytes)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    async fn finish(mut self) -> Result<()> {
        if self.commands.send(WriteCommand::Finish).await.is_err() {
            return Err(self.failure().await);
        }
        let Self {
            commands,
            writer,
            path,
        } = self;
        drop(commands);
        match writer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(file_failed(&path, error)),
            Err(join) => Err(file_failed(&path, io::Error::other(join))),
        }
    }

    /// Removes the file and waits until it is gone.
    async fn discard(self) {
        drop(self.commands);
        // The result is the error of an unfinished file.
        let _ = self.writer.await;
    }

    /// Returns why the writer has ended.
    async fn failure(&mut self) -> Error {
        let error = match (&mut self.writer).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => io::Error::other("the file was closed too early"),
            Err(join) => io::Error::other(join),
        };
        file_failed(&self.path, error)
    }
}

fn file_failed(path: &Path, error: io::Error) -> Error {
    let text = format!("cannot write {}: {error}", path.display());
    Error::new(ErrorKind::FileFailed, Outcome::NotSent, text)
        .with_rpc(rpc::SNAPSHOT)
        .with_source(error)
}

fn write(target: &Path, mut queue: mpsc::Receiver<WriteCommand>) -> io::Result<()> {
    let mut file = AtomicFile::create(target)?;
    loop {
        match queue.blocking_recv() {
            Some(WriteCommand::Append(bytes)) => file.write_all(&bytes)?,
            Some(WriteCommand::Finish) => return file.commit(),
            None => return Err(io::Error::other("the snapshot was not finished")),
        }
    }
}
