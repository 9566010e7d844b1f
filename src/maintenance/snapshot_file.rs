//! A snapshot as a file: whole under its name, or not there at all.

use std::{
    fmt, fs,
    future::IntoFuture,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Maintenance,
    snapshot::{Progress, Snapshot},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    request::ResponseFuture,
    retry::{RpcClass, table},
    transport::Endpoint,
};

/// How often a snapshot that broke off is begun anew, on another member if there is one.
const ATTEMPTS: u32 = 5;
/// Pieces between the network and the disk.
const PIECES: usize = 16;

impl Maintenance {
    /// Saves a copy of a member's database, in a file that only its owner may read. It is written beside, checked against its checksum, synced and then
    /// renamed: under this name there is never half a snapshot. If its member fails, it starts over with another one.
    pub fn snapshot_to(&self, path: impl Into<PathBuf>) -> SnapshotToFile {
        SnapshotToFile {
            client: self.0.clone(),
            path: path.into(),
            progress: None,
        }
    }
}

type Listener = Box<dyn FnMut(Progress) + Send>;

/// Saves a snapshot when it is awaited; see [`Maintenance::snapshot_to`].
#[must_use = "a snapshot is saved when this is awaited"]
pub struct SnapshotToFile {
    client: Client,
    path: PathBuf,
    progress: Option<Listener>,
}

impl SnapshotToFile {
    /// Tells after every piece how far it has come; it starts over with 0 after a failure. Default: nobody is told.
    pub fn progress(mut self, tell: impl FnMut(Progress) + Send + 'static) -> Self {
        self.progress = Some(Box::new(tell));
        self
    }

    async fn save(mut self) -> Result<SavedSnapshot> {
        let mut attempt = 1;
        let mut failed = Vec::new();
        loop {
            match self.attempt(&mut failed).await {
                Err(error) if attempt < ATTEMPTS && passes(&error) => {
                    tracing::warn!(%error, attempt, "the snapshot starts over");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Adds the member to those that failed if the snapshot breaks off.
    async fn attempt(&mut self, failed: &mut Vec<Endpoint>) -> Result<SavedSnapshot> {
        let mut snapshot = Snapshot::begin(&self.client, failed).await?;
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
            if let Some(tell) = &mut self.progress {
                tell(snapshot.progress());
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

fn passes(error: &Error) -> bool {
    let decision = table::decide(RpcClass::Read, error.kind(), error.outcome());
    matches!(
        decision,
        table::Decision::Retry(_) | table::Decision::Refresh
    )
}

impl IntoFuture for SnapshotToFile {
    type Output = Result<SavedSnapshot>;
    type IntoFuture = ResponseFuture<SavedSnapshot>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.save())
    }
}

impl fmt::Debug for SnapshotToFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotToFile({})", self.path.display())
    }
}

/// A snapshot that was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedSnapshot {
    /// Where.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The version of etcd to restore it with, where the member told (since etcd 3.6).
    pub version: Option<String>,
}

enum Piece {
    Bytes(Bytes),
    /// All is written and right: the file gets its name.
    Finish,
}

/// A file beside the final one, written on a thread that may block. Dropped unfinished, it is removed.
struct PartFile {
    pieces: mpsc::Sender<Piece>,
    writer: JoinHandle<io::Result<()>>,
    path: PathBuf,
}

impl PartFile {
    fn create(path: &Path) -> Self {
        let (pieces, queue) = mpsc::channel(PIECES);
        let target = path.to_owned();
        let writer = tokio::task::spawn_blocking(move || write(&target, queue));
        Self {
            pieces,
            writer,
            path: path.to_owned(),
        }
    }

    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match self.pieces.send(Piece::Bytes(bytes)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    async fn finish(mut self) -> Result<()> {
        if self.pieces.send(Piece::Finish).await.is_err() {
            return Err(self.failure().await);
        }
        let Self {
            pieces,
            writer,
            path,
        } = self;
        drop(pieces);
        match writer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(file_failed(&path, error)),
            Err(join) => Err(file_failed(&path, io::Error::other(join))),
        }
    }

    /// Removes the file, and returns when it is gone.
    async fn discard(self) {
        drop(self.pieces);
        // That it was given up is what the writer says then.
        let _ = self.writer.await;
    }

    /// Why the writer takes no more.
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
    let text = format!("{}: {error}", path.display());
    Error::new(ErrorKind::FileFailed, Outcome::NotSent, text).with_source(error)
}

fn write(target: &Path, mut queue: mpsc::Receiver<Piece>) -> io::Result<()> {
    let part = Beside::new(target)?;
    let mut file = private(&part.0)?;
    loop {
        match queue.blocking_recv() {
            Some(Piece::Bytes(bytes)) => file.write_all(&bytes)?,
            Some(Piece::Finish) => break,
            None => return Err(io::Error::other("the snapshot was given up")),
        }
    }
    file.sync_all()?;
    fs::rename(&part.0, target)?;
    // The new name is safe only when the folder is.
    sync_folder(folder_of(target))
}

/// A new file that only its owner reads: a snapshot has all keys in it, and the hashes of passwords.
fn private(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// The folder of a file, which is the current one where the path has none.
fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// A name beside the target, of a file that is removed unless it was renamed.
struct Beside(PathBuf);

impl Beside {
    fn new(target: &Path) -> io::Result<Self> {
        let name = target
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
        let mut part = name.to_owned();
        // Two snapshots to one name must not write into one file.
        part.push(format!(".{:08x}.part", fastrand::u32(..)));
        Ok(Self(target.with_file_name(part)))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It is gone already where it was renamed.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_in_the_current_folder() {
        assert_eq!(folder_of(Path::new("backup.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("./backup.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/b.db")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/b.db")), Path::new("/"));
        assert!(sync_folder(folder_of(Path::new("backup.db"))).is_ok());
    }
}
