//! The task of a mirror: copies the base, then follows the changes of the source.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::time::sleep;
use tokio_stream::Stream;

use super::{
    ExistingKeys, MirrorEnd, MirrorSide,
    change_queue::{ChangeQueue, MirroredChange},
    destination_writer::{ATTEMPT_DELAY, DestinationWriter, WriteFailure},
    mirror_checkpoint::{MirrorPosition, PartialRevision},
    mirror_progress::MirrorReporter,
    mirror_route::MirrorRoute,
    stop_signal::StopMirror,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    proto::Event,
    retry::availability::is_temporary,
    runtime::backoff::BackoffTimer,
    watch::{RevisionEvents, Watch, WatchEnd, WatchEvent},
};

/// Interval at which the source confirms that the mirror has received everything.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the checkpoint moves while no key of the prefix changes, so that a new mirror does not begin at a
/// compacted revision.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

pub(super) struct MirrorTask {
    pub(super) source: Client,
    pub(super) source_cluster: u64,
    pub(super) route: MirrorRoute,
    pub(super) existing_keys: ExistingKeys,
    pub(super) merge: bool,
    pub(super) writer: DestinationWriter,
    pub(super) reporter: MirrorReporter,
    pub(super) stop: StopMirror,
}

/// What the mirror does next.
#[derive(Debug)]
pub(super) enum NextPhase {
    /// Copies all keys as of this revision, or of the newest one if it is 0.
    Base {
        revision: i64,
        /// The keys up to this suffix are copied.
        copied: Option<Bytes>,
    },
    /// Applies the changes after this revision.
    Follow {
        revision: i64,
        partial: Option<PartialRevision>,
    },
}

impl NextPhase {
    pub(super) const NEW_BASE: Self = Self::Base {
        revision: 0,
        copied: None,
    };
}

impl From<&MirrorPosition> for NextPhase {
    fn from(position: &MirrorPosition) -> Self {
        match position.clone() {
            MirrorPosition::Base { revision, copied } => Self::Base { revision, copied },
            MirrorPosition::Applied { revision, partial } => Self::Follow { revision, partial },
        }
    }
}

/// Why a phase ended early.
#[derive(Debug)]
pub(super) enum PhaseEnd {
    /// The mirror continues at the position of the checkpoint.
    Moved,
    Ended(MirrorEnd),
}

impl From<WriteFailure> for PhaseEnd {
    fn from(failure: WriteFailure) -> Self {
        match failure {
            // The limits are smaller now.
            WriteFailure::TooLarge | WriteFailure::Moved => Self::Moved,
            WriteFailure::Ended(end) => Self::Ended(end),
        }
    }
}

impl From<MirrorEnd> for PhaseEnd {
    fn from(end: MirrorEnd) -> Self {
        Self::Ended(end)
    }
}

impl From<Error> for PhaseEnd {
    fn from(error: Error) -> Self {
        Self::Ended(MirrorEnd::Failed(error))
    }
}

impl MirrorTask {
    /// Runs until the mirror ends, and reports why.
    pub(super) async fn run(mut self) {
        let mut next = NextPhase::from(self.writer.position());
        let end = loop {
            let phase = match next {
                NextPhase::Base { revision, copied } => self.copy_base(revision, copied).await,
                NextPhase::Follow { revision, partial } => self.follow(revision, partial).await,
            };
            next = match phase {
                Ok(next) => next,
                Err(PhaseEnd::Moved) => {
                    self.reporter.moved(self.writer.position());
                    NextPhase::from(self.writer.position())
                }
                Err(PhaseEnd::Ended(end)) => break end,
            };
        };
        self.reporter.ended(end);
    }

    /// Applies every revision after this one. Returns what follows when the watch cannot continue.
    async fn follow(
        &mut self,
        revision: i64,
        partial: Option<PartialRevision>,
    ) -> Result<NextPhase, PhaseEnd> {
        // The copy is complete as of a time only after all changes that existed before the watch was opened.
        let caught_up = self.source_revision().await?;
        self.reporter.source_is_at(caught_up);
        let mut watch = self.open_watch(revision + 1).await?;
        // The source may have been replaced or restored before the watch was open.
        self.check_source(revision).await?;
        self.reporter.following();
        self.reporter.applied(revision);
        let mut queue = ChangeQueue::new(revision, partial, self.merge);
        let mut last_checkpoint = Instant::now();
        loop {
            let event = tokio::select! {
                biased;
                () = self.stop.requested() => {
                    self.move_checkpoint(&watch).await?;
                    return Err(PhaseEnd::Ended(MirrorEnd::Stopped));
                }
                event = watch.next() => event,
            };
            let mut end = self.handle(event, &mut queue);
            while end.is_none() && !queue.is_full(self.writer.limits()) {
                let Some(event) = next_ready(&mut watch).await else {
                    break;
                };
                end = self.handle(Some(event), &mut queue);
            }
            if self.apply(&mut queue).await? {
                last_checkpoint = Instant::now();
            }
            match end {
                None => {}
                Some(WatchEnd::Compacted { .. }) => return Ok(NextPhase::NEW_BASE),
                Some(WatchEnd::RevisionRegressed { seen, current }) => {
                    return Err(regressed(seen, current).into());
                }
                Some(end) => return Err(end.to_error().into()),
            }
            let freshness = watch.freshness();
            self.reporter.applied(freshness.revision);
            if freshness.revision >= caught_up {
                self.reporter.complete_as_of(freshness.as_of);
            }
            if last_checkpoint.elapsed() >= CHECKPOINT_EVERY {
                last_checkpoint = Instant::now();
                self.move_checkpoint(&watch).await?;
            }
        }
    }

    /// Opens the watch of the source. Repeats attempts until it is open.
    async fn open_watch(&self, from: i64) -> Result<Watch, PhaseEnd> {
        let prefix = self.route.source_prefix.clone();
        let open = self
            .source
            .watch(prefix)
            .prefix()
            .start_revision(from)
            .status_events()
            .report_freshness(CONFIRM_EVERY);
        let mut backoff = ATTEMPT_DELAY.start();
        loop {
            let error = match open.clone().await {
                Ok(watch) => {
                    self.reporter.resumed(MirrorSide::Source);
                    return Ok(watch);
                }
                Err(error) => error,
            };
            self.pause(error, &mut backoff).await?;
        }
    }

    /// Waits after a failed request to the source. Fails if the error does not pass, or if the mirror must stop.
    async fn pause(&self, error: Error, backoff: &mut BackoffTimer) -> Result<(), PhaseEnd> {
        if !is_temporary(&error) {
            return Err(error.into());
        }
        self.reporter
            .interrupted(MirrorSide::Source, Arc::new(error));
        tokio::select! {
            biased;
            () = self.stop.requested() => Err(PhaseEnd::Ended(MirrorEnd::Stopped)),
            () = sleep(backoff.next_delay(fastrand::f64())) => Ok(()),
        }
    }

    /// Handles an item of the watch. Returns why the watch ended, with its last item.
    fn handle(&self, event: Option<WatchEvent>, queue: &mut ChangeQueue) -> Option<WatchEnd> {
        match event {
            Some(WatchEvent::Events(events)) => {
                self.reporter.source_is_at(events.revision());
                queue.push(events.revision(), self.changes(&events));
            }
            Some(WatchEvent::Disconnected(error)) => {
                self.reporter.interrupted(MirrorSide::Source, error);
            }
            Some(WatchEvent::Resumed) => self.reporter.resumed(MirrorSide::Source),
            Some(WatchEvent::Ended(end)) => return Some(end),
            Some(_) => {}
            None => return Some(WatchEnd::Cancelled),
        }
        None
    }

    fn changes(&self, events: &RevisionEvents) -> Vec<MirroredChange> {
        let change = |event: &Event| {
            let key = self.route.destination_key(event.key());
            let kv = event.kv.as_ref().filter(|_| event.is_put());
            let value = kv.map(|kv| kv.value.clone());
            (!self.route.is_checkpoint(&key)).then_some(MirroredChange { key, value })
        };
        events.iter().filter_map(change).collect()
    }

    /// Applies all changes of the queue. Returns whether there were any.
    async fn apply(&mut self, queue: &mut ChangeQueue) -> Result<bool, PhaseEnd> {
        let mut applied = false;
        while let Some(transaction) = queue.plan(self.writer.limits()) {
            let position = transaction.position;
            let written = self
                .writer
                .write(&transaction.changes, position, &self.reporter);
            match written.await {
                Ok(()) => {
                    queue.applied(self.writer.position());
                    self.reporter.applied(self.writer.position().revision());
                    applied = true;
                }
                Err(WriteFailure::TooLarge) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(applied)
    }

    /// Moves the checkpoint to the revision up to which the watch is complete, if it is newer.
    async fn move_checkpoint(&mut self, watch: &Watch) -> Result<(), PhaseEnd> {
        let Some(position) = self
            .writer
            .position()
            .advanced_to(watch.freshness().revision)
        else {
            return Ok(());
        };
        Ok(self.writer.write(&[], position, &self.reporter).await?)
    }

    /// Fails if the source is another cluster, or at an older revision than this one.
    pub(super) async fn check_source(&self, seen: i64) -> Result<(), PhaseEnd> {
        match self.source_revision().await? {
            current if current < seen => Err(regressed(seen, current).into()),
            _ => Ok(()),
        }
    }

    /// Returns the newest revision of the source. Fails if it is another cluster, or older than it was.
    pub(super) async fn source_revision(&self) -> Result<i64, PhaseEnd> {
        let mut backoff = ATTEMPT_DELAY.start();
        loop {
            let key = self.route.probe_key();
            match self.source.get(key).count_only().await {
                Ok(found) if found.header.cluster_id != self.source_cluster => {
                    let reason = "the client of the source changed to another cluster";
                    let changed = Error::new(ErrorKind::ClusterChanged, Outcome::NotSent, reason);
                    return Err(changed.into());
                }
                Ok(found) => {
                    let (seen, current) =
                        (self.writer.position().revision(), found.header.revision);
                    if current < seen {
                        return Err(regressed(seen, current).into());
                    }
                    self.reporter.resumed(MirrorSide::Source);
                    return Ok(current);
                }
                Err(error) => self.pause(error, &mut backoff).await?,
            }
        }
    }
}

/// The error of a source that is at an older revision than the checkpoint.
pub(super) fn regressed(seen: i64, current: i64) -> Error {
    let reason = format!(
        "the source of the mirror is at revision {current}, but was at {seen} before: it was restored from a backup or \
         lost its data; start the mirror with `start_over()` to copy it again"
    );
    Error::new(ErrorKind::RevisionRegressed, Outcome::NotSent, reason)
}

/// Returns the next item of the watch if it has arrived.
async fn next_ready(watch: &mut Watch) -> Option<WatchEvent> {
    poll_fn(|cx| match Pin::new(&mut *watch).poll_next(cx) {
        Poll::Ready(event) => Poll::Ready(event),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Reports the revision of the source while the watch is behind it, for example because the destination does not
/// respond.
pub(super) async fn report_source_revision(source: Client, key: Bytes, reporter: MirrorReporter) {
    loop {
        sleep(CONFIRM_EVERY).await;
        // Any member will do: the revision is only compared.
        let read = source.get(key.clone()).count_only().serializable();
        if let Ok(found) = read.await {
            reporter.source_is_at(found.header.revision);
        }
    }
}
