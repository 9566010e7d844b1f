//! Writes the snapshot file after changes, and at the end.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use tokio::task::JoinHandle;

use super::{
    CacheSnapshot,
    cache_file::{SavedState, write_file},
    cached_range::CachedRange,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
};

/// Where the file is, and how often it is written.
#[derive(Debug, Clone)]
pub(crate) struct FileOptions {
    pub(crate) path: PathBuf,
    pub(crate) interval: Duration,
    pub(crate) max_age: Option<Duration>,
}

/// Writes the file of a cache or a configuration.
pub(crate) struct FileWriter {
    options: FileOptions,
    /// The range with the namespace of the client.
    sent_range: CachedRange,
    /// The last content that was written.
    written: Option<CacheSnapshot>,
    /// A write that has not ended, and its content.
    running: Option<(CacheSnapshot, JoinHandle<Result<()>>)>,
}

impl FileWriter {
    pub(crate) fn new(client: &Client, options: FileOptions, range: &CachedRange) -> Self {
        Self {
            options,
            sent_range: range.sent_by(client),
            written: None,
            running: None,
        }
    }

    /// Returns the time between a change and its write.
    pub(crate) fn interval(&self) -> Duration {
        self.options.interval
    }

    /// Waits so long that changes that follow each other fast are written at once.
    pub(crate) async fn debounce(&self) {
        tokio::time::sleep(self.options.interval).await;
    }

    /// Writes the content if it has changed since the last time. Returns `None` if nothing was written.
    ///
    /// A revision without other changes is written at the end only, unless the age of the file matters.
    pub(crate) async fn write(
        &mut self,
        snapshot: CacheSnapshot,
        is_end: bool,
    ) -> Option<Result<()>> {
        // A write whose future was dropped goes on, and must not replace the file of a later one.
        let earlier = self.finish().await;
        let any_revision = !is_end && self.options.max_age.is_none();
        let is_written = |written: &CacheSnapshot| {
            (any_revision || written.revision == snapshot.revision)
                && written.cluster == snapshot.cluster
                && written.tree.is_same(&snapshot.tree)
        };
        if self.written.as_ref().is_some_and(is_written) {
            return earlier;
        }
        let (path, sent_range) = (self.options.path.clone(), self.sent_range.clone());
        let state = SavedState {
            snapshot: snapshot.clone(),
            saved: SystemTime::now(),
        };
        let write = move || write_file(&path, &sent_range, &state);
        self.running = Some((snapshot, tokio::task::spawn_blocking(write)));
        self.finish().await
    }

    /// Waits for the end of a running write. Returns `None` if there is none.
    async fn finish(&mut self) -> Option<Result<()>> {
        let (_, running) = self.running.as_mut()?;
        let result = running.await.unwrap_or_else(|error| {
            let reason = "the snapshot file was not written";
            Err(Error::new(ErrorKind::Internal, Outcome::NotSent, reason).with_source(error))
        });
        let (snapshot, _) = self.running.take()?;
        match &result {
            Ok(()) => self.written = Some(snapshot),
            Err(error) => tracing::warn!(%error, "snapshot file of a cache was not written"),
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        kv::KeyValue,
        layers::cache::{CacheEntry, cache_file::FileCheck, cache_file::read_file},
    };

    fn snapshot(keys: i64, revision: i64) -> CacheSnapshot {
        let mut snapshot = CacheSnapshot {
            revision,
            ..CacheSnapshot::default()
        };
        for number in 0..keys {
            let kv = KeyValue {
                key: format!("k/{number:06}").into(),
                ..KeyValue::default()
            };
            let entry = CacheEntry::new(&kv, &mut Vec::new());
            snapshot.tree.insert(entry);
        }
        snapshot
    }

    fn writer(folder: &std::path::Path) -> FileWriter {
        FileWriter {
            options: FileOptions::new(folder.join("file")),
            sent_range: CachedRange::Prefix("k/".into()),
            written: None,
            running: None,
        }
    }

    fn folder() -> PathBuf {
        let name = format!("actix-etcd-writer-{:016x}", fastrand::u64(..));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn revision(folder: &std::path::Path) -> i64 {
        let check = FileCheck {
            range: CachedRange::Prefix("k/".into()),
            sent_range: CachedRange::Prefix("k/".into()),
            cluster: None,
            max_age: None,
            max_bytes: usize::MAX,
        };
        let saved = read_file(&folder.join("file"), &check).unwrap();
        saved.unwrap().snapshot.revision
    }

    #[tokio::test]
    async fn dropped_write_ends_before_the_next_one() {
        let folder = folder();
        let mut writer = writer(&folder);
        let large = writer.write(snapshot(50_000, 1), false);
        let dropped = tokio::time::timeout(Duration::from_millis(1), large).await;
        assert!(dropped.is_err(), "the write takes longer");
        let written = writer.write(snapshot(1, 2), false).await;
        written.unwrap().unwrap();
        assert_eq!(revision(&folder), 2);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn revision_alone_is_written_at_the_end() {
        let folder = folder();
        let mut writer = writer(&folder);
        let mut keys = snapshot(3, 1);
        writer.write(keys.clone(), false).await.unwrap().unwrap();
        keys.revision = 2;
        assert!(writer.write(keys.clone(), false).await.is_none());
        assert_eq!(revision(&folder), 1);
        writer.write(keys, true).await.unwrap().unwrap();
        assert_eq!(revision(&folder), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
