//! Writes the snapshot file after changes, and at the end.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

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
    client: Client,
    options: FileOptions,
    range: CachedRange,
    /// The last content that was written.
    written: Option<CacheSnapshot>,
}

impl FileWriter {
    pub(crate) fn new(client: Client, options: FileOptions, range: CachedRange) -> Self {
        Self {
            client,
            options,
            range,
            written: None,
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

    /// Writes the content if it has changed since the last time. Returns `None` if it has not.
    pub(crate) async fn write(&mut self, snapshot: CacheSnapshot) -> Option<Result<()>> {
        let is_written = |written: &CacheSnapshot| {
            written.revision == snapshot.revision && written.tree.is_same(&snapshot.tree)
        };
        if self.written.as_ref().is_some_and(is_written) {
            return None;
        }
        let state = Arc::new(SavedState {
            snapshot,
            cluster: self.client.cluster_id().unwrap_or(0),
            saved: SystemTime::now(),
        });
        let (path, range, saved) = (self.options.path.clone(), self.range.clone(), state.clone());
        let write = move || write_file(&path, &range, &saved);
        let result = match tokio::task::spawn_blocking(write).await {
            Ok(result) => result,
            Err(error) => {
                let reason = "the snapshot file was not written";
                Err(Error::new(ErrorKind::Internal, Outcome::NotSent, reason).with_source(error))
            }
        };
        match &result {
            Ok(()) => self.written = Some(state.snapshot.clone()),
            Err(error) => tracing::warn!(%error, "snapshot file of a cache was not written"),
        }
        Some(result)
    }
}
