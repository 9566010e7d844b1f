//! The task that replaces the value of a configuration, on the client's thread.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::{sync::watch, time::Instant};

use super::{RejectedConfig, config_source::ConfigSource};
use crate::{
    error::Error,
    layers::cache::{CacheChanges, CacheEvent, CacheSnapshot, file_writer::FileWriter},
    runtime::delivery::UnfinishedDelivery,
};

/// What readers of a configuration see.
pub(super) struct ConfigState<T> {
    pub(super) value: Arc<T>,
    /// Revision of the change that the value comes from.
    pub(super) revision: i64,
    /// Number of versions that were accepted.
    pub(super) accepted: u64,
    /// The version after the accepted one, and its number among all rejected ones.
    pub(super) rejected: Option<(u64, RejectedConfig)>,
    /// Why there are no more updates.
    pub(super) ended: Option<Error>,
}

impl<T> Clone for ConfigState<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            revision: self.revision,
            accepted: self.accepted,
            rejected: self.rejected.clone(),
            ended: self.ended.clone(),
        }
    }
}

/// Shared by the task of a configuration and its handles.
pub(super) struct ConfigCell<T> {
    pub(super) state: ArcSwap<ConfigState<T>>,
    pub(super) file_error: Mutex<Option<Error>>,
}

/// Follows the changes of the keys.
pub(super) struct ConfigTask<T> {
    pub(super) source: ConfigSource<T>,
    pub(super) changes: CacheChanges,
    pub(super) cell: Arc<ConfigCell<T>>,
    /// Notifies the handles of each state. Closed when the task has ended.
    pub(super) ticks: watch::Sender<()>,
    pub(super) writer: Option<FileWriter>,
    /// Keys of the last accepted version, if etcd has confirmed them. Only these are written to the file.
    pub(super) accepted: Option<CacheSnapshot>,
    pub(super) rejections: u64,
}

impl<T: Send + Sync + 'static> ConfigTask<T> {
    /// Runs until all handles are dropped or the cache has ended.
    pub(super) fn run(self) -> impl Future<Output = ()> {
        // The client's thread must not end before the file is written.
        let unfinished = self.writer.is_some().then(UnfinishedDelivery::new);
        async move {
            self.follow().await;
            drop(unfinished);
        }
    }

    async fn follow(mut self) {
        let ticks = self.ticks.clone();
        let mut write_at = self.write_time();
        loop {
            tokio::select! {
                () = ticks.closed() => break,
                event = self.changes.next() => match event {
                    Some(CacheEvent::Updated(update)) => {
                        if self.update(update.after()) && write_at.is_none() {
                            write_at = self.write_time();
                        }
                    }
                    Some(CacheEvent::Ended(error)) => {
                        self.publish(|state| state.ended = Some(error));
                        break;
                    }
                    None => break,
                },
                () = reached(write_at) => {
                    write_at = None;
                    self.write_file(false).await;
                }
            }
        }
        self.write_file(true).await;
    }

    /// Evaluates a new version. Returns whether it was accepted.
    fn update(&mut self, keys: &CacheSnapshot) -> bool {
        match self.source.evaluate(keys) {
            Ok(new) => {
                self.accepted = Some(keys.clone());
                self.publish(|state| {
                    state.value = new.value;
                    state.revision = new.revision;
                    state.accepted += 1;
                    state.rejected = None;
                });
                true
            }
            Err(rejected) => {
                tracing::warn!(
                    error = %rejected.error,
                    revision = rejected.revision,
                    "configuration was rejected, the last accepted one stays in use"
                );
                self.rejections += 1;
                let number = self.rejections;
                self.publish(|state| state.rejected = Some((number, rejected)));
                false
            }
        }
    }

    fn publish(&self, change: impl FnOnce(&mut ConfigState<T>)) {
        let mut state = ConfigState::clone(&self.cell.state.load());
        change(&mut state);
        self.cell.state.store(Arc::new(state));
        self.ticks.send_replace(());
    }

    fn write_time(&self) -> Option<Instant> {
        let writer = self.writer.as_ref().filter(|_| self.accepted.is_some())?;
        Some(Instant::now() + writer.interval())
    }

    async fn write_file(&mut self, is_end: bool) {
        if let (Some(writer), Some(accepted)) = (&mut self.writer, &self.accepted)
            && let Some(result) = writer.write(accepted.clone(), is_end).await
        {
            let error = self.cell.file_error.lock();
            *error.unwrap_or_else(PoisonError::into_inner) = result.err();
        }
    }
}

async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
