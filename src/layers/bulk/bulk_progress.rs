//! Counts what a bulk has written, and reports it while the bulk runs.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tokio_stream::{Stream, wrappers::WatchStream};

use super::{
    BulkFailed, BulkPartResult, BulkReport, chunk_delivery::DeliveredPart,
    written_prefix::WrittenPrefix,
};
use crate::error::Error;

pub(super) type OnBulkProgress = Box<dyn FnMut(BulkProgress) + Send>;
pub(super) type OnBulkPartResult = Box<dyn FnMut(&BulkPartResult) + Send>;

/// The progress of a bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BulkProgress {
    /// Number of writes accepted.
    pub accepted: u64,
    /// Number of writes that are known to be applied.
    pub written: u64,
    /// Number of writes that failed.
    pub failed: u64,
    /// Size of the written keys and values.
    pub written_bytes: u64,
    /// Number of writes at the start of the input that are all known to be written.
    pub resume_point: u64,
    /// Time since the start of the bulk.
    pub elapsed: Duration,
}

impl BulkProgress {
    /// Returns the number of written keys per second since the start.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a rate for people needs few digits"
    )]
    pub fn keys_per_sec(&self) -> f64 {
        self.written as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A stream of the progress of a bulk; see [`Bulk::progress_updates`](super::Bulk::progress_updates). A slow reader
/// gets only the newest progress.
#[must_use = "a stream does nothing until it is read"]
#[derive(Debug)]
pub struct BulkProgressUpdates(WatchStream<BulkProgress>);

impl BulkProgressUpdates {
    /// Returns the progress when it has changed; `None` after the end of the bulk.
    pub async fn next(&mut self) -> Option<BulkProgress> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for BulkProgressUpdates {
    type Item = BulkProgress;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BulkProgress>> {
        Pin::new(&mut self.0).poll_next(cx)
    }
}

/// The results so far.
pub(super) struct Tally {
    started: Instant,
    progress: BulkProgress,
    prefix: WrittenPrefix,
    revision: i64,
    failures: Vec<BulkPartResult>,
    max_failures: usize,
    /// Why the bulk stopped.
    stopped: Option<Error>,
    on_progress: Option<OnBulkProgress>,
    on_part_result: Option<OnBulkPartResult>,
    updates: watch::Sender<BulkProgress>,
}

impl Tally {
    pub(super) fn new(
        max_failures: usize,
        on_progress: Option<OnBulkProgress>,
        on_part_result: Option<OnBulkPartResult>,
    ) -> Self {
        Self {
            started: Instant::now(),
            progress: BulkProgress::default(),
            prefix: WrittenPrefix::default(),
            revision: 0,
            failures: Vec::new(),
            max_failures,
            stopped: None,
            on_progress,
            on_part_result,
            updates: watch::Sender::new(BulkProgress::default()),
        }
    }

    /// Returns why the bulk stopped, or `None` while it accepts writes.
    pub(super) fn stopped(&self) -> Option<&Error> {
        self.stopped.as_ref()
    }

    pub(super) fn record(&mut self, part: DeliveredPart) {
        let count = part.positions.end - part.positions.start;
        match &part.result {
            Ok(revision) => {
                self.progress.written += count;
                self.progress.written_bytes += part.bytes;
                self.revision = self.revision.max(*revision);
                self.prefix.written(&part.positions, &part.last_key);
            }
            Err(error) => {
                self.progress.failed += count;
                self.prefix.failed(&part.positions);
                if part.stop || self.failures.len() + 1 >= self.max_failures {
                    self.stopped.get_or_insert_with(|| error.clone());
                }
            }
        }
        let result = BulkPartResult {
            positions: part.positions,
            first_key: part.first_key,
            last_key: part.last_key,
            result: part.result,
        };
        if let Some(on_part_result) = &mut self.on_part_result {
            on_part_result(&result);
        }
        if result.result.is_err() {
            self.failures.push(result);
        }
    }

    /// Returns the progress now.
    pub(super) fn progress(&self, accepted: u64) -> BulkProgress {
        BulkProgress {
            accepted,
            resume_point: self.prefix.length(),
            elapsed: self.started.elapsed(),
            ..self.progress
        }
    }

    /// Reports the progress to the callback and the streams.
    pub(super) fn publish(&mut self, accepted: u64) {
        let progress = self.progress(accepted);
        if let Some(on_progress) = &mut self.on_progress {
            on_progress(progress);
        }
        self.updates.send_replace(progress);
    }

    pub(super) fn updates(&self) -> BulkProgressUpdates {
        BulkProgressUpdates(WatchStream::new(self.updates.subscribe()))
    }

    pub(super) fn finish(self, accepted: u64) -> Result<BulkReport, BulkFailed> {
        let BulkProgress {
            written,
            failed,
            written_bytes,
            resume_point,
            elapsed,
            ..
        } = self.progress(accepted);
        let first_failure = self.failures.first();
        let first_failure = first_failure.and_then(|failure| failure.result.clone().err());
        let reason = self.stopped.or(first_failure);
        let report = BulkReport {
            written,
            failed,
            unsent: accepted - written - failed,
            written_bytes,
            revision: self.revision,
            resume_point,
            resume_key: self.prefix.last_key().cloned(),
            failures: self.failures,
            elapsed,
        };
        match reason {
            None => Ok(report),
            Some(reason) => Err(BulkFailed::new(report, reason)),
        }
    }
}
