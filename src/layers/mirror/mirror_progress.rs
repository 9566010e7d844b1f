//! What a mirror reports: its state, its progress, and its lag.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use actix::Message;
use tokio::sync::watch;

use super::mirror_checkpoint::MirrorPosition;
use crate::error::Error;

/// The state of a mirror.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum MirrorState {
    /// The mirror copies all keys as of this revision of the source. Until it is done, the destination has keys of
    /// different revisions.
    CopyingBase {
        /// The revision of the source.
        revision: i64,
    },
    /// The mirror applies every revision of the source.
    Following,
    /// The mirror cannot read the source or write the destination now, and tries again. If both, this is the latest
    /// interruption.
    Interrupted {
        /// The cluster that does not respond.
        side: MirrorSide,
        /// Error of the last attempt.
        error: Arc<Error>,
    },
    /// The mirror has ended. This is the last state.
    Ended(MirrorEnd),
}

/// One of the two clusters of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MirrorSide {
    /// The cluster that the mirror reads.
    Source,
    /// The cluster that the mirror writes.
    Destination,
}

/// Why a mirror ended. In every case, a new mirror with the same checkpoint continues where this one ended, unless the
/// error says otherwise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MirrorEnd {
    /// [`Mirror::stop`](super::Mirror::stop) was called, or the handle was dropped.
    Stopped,
    /// An error that does not pass by itself. Kinds with a meaning of their own:
    /// - [`CheckpointTaken`](crate::ErrorKind::CheckpointTaken): another mirror started with the same checkpoint. This
    ///   one has written nothing since.
    /// - [`CheckpointMismatch`](crate::ErrorKind::CheckpointMismatch): the checkpoint was deleted or overwritten.
    /// - [`RevisionRegressed`](crate::ErrorKind::RevisionRegressed): the source was restored from a backup, or lost its
    ///   data. The destination has its earlier state; [`start_over`](super::MirrorBuilder::start_over) replaces it.
    /// - [`ClusterChanged`](crate::ErrorKind::ClusterChanged): the endpoints of the source lead to another cluster.
    /// - [`Shutdown`](crate::ErrorKind::Shutdown): one of the two clients was shut down.
    Failed(Error),
}

/// How far a mirror is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MirrorProgress {
    /// The destination has all changes of the source up to this revision; 0 until the base is copied.
    pub applied_revision: i64,
    /// Newest known revision of the source.
    pub source_revision: i64,
    /// The destination had all changes that the source had at this time; `None` until the mirror has caught up for the
    /// first time.
    pub complete_as_of: Option<Instant>,
    /// Number of keys that this mirror has put or deleted.
    pub changes: u64,
    /// Number of transactions in which it did.
    pub transactions: u64,
}

impl MirrorProgress {
    /// Returns how far the destination is behind the source; `None` until the mirror has caught up for the first time.
    pub fn lag(&self) -> Option<MirrorLag> {
        Some(MirrorLag {
            revisions: (self.source_revision - self.applied_revision).max(0),
            age: self.complete_as_of?.elapsed(),
        })
    }
}

/// How far the destination of a mirror is behind its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorLag {
    /// Number of revisions of the source that are not applied, as far as known. Also counts revisions that changed only
    /// other keys, until the source has confirmed that; it does so every second.
    pub revisions: i64,
    /// The destination has every change of the source that is older than this. At most about a second while the mirror
    /// keeps up, also without changes.
    pub age: Duration,
}

/// A cluster that does not respond.
#[derive(Debug)]
struct SideInterruption {
    side: MirrorSide,
    /// Error of the last attempt.
    error: Arc<Error>,
}

/// Publishes state and progress. Clones publish to the same readers.
#[derive(Debug, Clone)]
pub(super) struct MirrorReporter {
    state: Arc<watch::Sender<MirrorState>>,
    progress: Arc<watch::Sender<MirrorProgress>>,
    /// The state apart from interruptions.
    phase: MirrorState,
    /// The interruptions that have not ended, at most one per side, the latest one last.
    interruptions: Arc<Mutex<Vec<SideInterruption>>>,
}

impl MirrorReporter {
    pub(super) fn new(position: &MirrorPosition, source_revision: i64) -> Self {
        let phase = match position {
            MirrorPosition::Base { .. } => {
                let revision = source_revision;
                MirrorState::CopyingBase { revision }
            }
            MirrorPosition::Applied { .. } => MirrorState::Following,
        };
        let progress = MirrorProgress {
            applied_revision: applied_revision(position),
            source_revision,
            ..MirrorProgress::default()
        };
        Self {
            state: Arc::new(watch::Sender::new(phase.clone())),
            progress: Arc::new(watch::Sender::new(progress)),
            phase,
            interruptions: Arc::default(),
        }
    }

    pub(super) fn states(&self) -> watch::Receiver<MirrorState> {
        self.state.subscribe()
    }

    pub(super) fn progress(&self) -> watch::Receiver<MirrorProgress> {
        self.progress.subscribe()
    }

    pub(super) fn copying_base(&mut self, revision: i64) {
        self.progress.send_modify(|progress| {
            progress.applied_revision = 0;
            progress.complete_as_of = None;
            progress.source_revision = progress.source_revision.max(revision);
        });
        self.enter(MirrorState::CopyingBase { revision });
    }

    pub(super) fn following(&mut self) {
        self.enter(MirrorState::Following);
    }

    fn enter(&mut self, phase: MirrorState) {
        tracing::info!(state = ?phase, "mirror changed its state");
        self.phase = phase;
        self.change_interruptions(|_| true);
    }

    pub(super) fn interrupted(&self, side: MirrorSide, error: Arc<Error>) {
        tracing::debug!(?side, %error, "mirror was interrupted");
        self.change_interruptions(|interruptions| {
            interruptions.retain(|interruption| interruption.side != side);
            interruptions.push(SideInterruption { side, error });
            true
        });
    }

    /// Ends an interruption by this cluster.
    pub(super) fn resumed(&self, side: MirrorSide) {
        self.change_interruptions(|interruptions| {
            let before = interruptions.len();
            interruptions.retain(|interruption| interruption.side != side);
            interruptions.len() < before
        });
    }

    /// Publishes the state if the closure returns `true`.
    fn change_interruptions(&self, change: impl FnOnce(&mut Vec<SideInterruption>) -> bool) {
        let interruptions = self.interruptions.lock();
        let mut interruptions = interruptions.unwrap_or_else(PoisonError::into_inner);
        if !change(&mut interruptions) {
            return;
        }
        self.state.send_replace(match interruptions.last() {
            Some(SideInterruption { side, error }) => MirrorState::Interrupted {
                side: *side,
                error: error.clone(),
            },
            None => self.phase.clone(),
        });
    }

    pub(super) fn ended(&self, end: MirrorEnd) {
        match &end {
            MirrorEnd::Stopped => tracing::info!("mirror stopped"),
            MirrorEnd::Failed(error) => tracing::warn!(%error, "mirror ended"),
        }
        self.state.send_replace(MirrorState::Ended(end));
    }

    pub(super) fn wrote(&self, changes: usize) {
        self.progress.send_modify(|progress| {
            progress.changes += changes as u64;
            progress.transactions += u64::from(changes > 0);
        });
    }

    /// The destination is at another position than before, which may be an earlier one.
    pub(super) fn moved(&self, position: &MirrorPosition) {
        self.progress.send_modify(|progress| {
            progress.applied_revision = applied_revision(position);
            progress.complete_as_of = None;
        });
    }

    /// The destination has all changes of the source up to this revision.
    pub(super) fn applied(&self, revision: i64) {
        self.progress.send_modify(|progress| {
            progress.applied_revision = progress.applied_revision.max(revision);
            progress.source_revision = progress.source_revision.max(revision);
        });
    }

    /// The destination has all changes that the source had at this time.
    pub(super) fn complete_as_of(&self, time: Instant) {
        self.progress.send_modify(|progress| {
            progress.complete_as_of = progress.complete_as_of.max(Some(time));
        });
    }

    /// The source is at this revision, or a later one.
    pub(super) fn source_is_at(&self, revision: i64) {
        self.progress.send_if_modified(|progress| {
            let newer = revision > progress.source_revision;
            progress.source_revision = progress.source_revision.max(revision);
            newer
        });
    }
}

/// Returns the revision up to which the destination has all changes; 0 until the base is copied.
fn applied_revision(position: &MirrorPosition) -> i64 {
    match position {
        MirrorPosition::Base { .. } => 0,
        MirrorPosition::Applied { revision, .. } => *revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Outcome};

    fn at(revision: i64) -> MirrorPosition {
        MirrorPosition::Applied {
            revision,
            partial: None,
        }
    }

    #[test]
    fn interruption_lasts_until_its_side_resumes() {
        let mut reporter = MirrorReporter::new(&at(5), 5);
        let error = Arc::new(Error::new(ErrorKind::Unavailable, Outcome::NotSent, ""));
        let interrupted = |reporter: &MirrorReporter| match &*reporter.states().borrow() {
            MirrorState::Interrupted { side, .. } => Some(*side),
            _ => None,
        };
        reporter.interrupted(MirrorSide::Source, error.clone());
        reporter.interrupted(MirrorSide::Destination, error);
        assert_eq!(interrupted(&reporter), Some(MirrorSide::Destination));
        reporter.resumed(MirrorSide::Destination);
        assert_eq!(interrupted(&reporter), Some(MirrorSide::Source));
        reporter.copying_base(6);
        assert_eq!(interrupted(&reporter), Some(MirrorSide::Source));
        reporter.resumed(MirrorSide::Source);
        assert_eq!(interrupted(&reporter), None);
    }

    #[test]
    fn earlier_position_lowers_progress() {
        let reporter = MirrorReporter::new(&at(5), 5);
        reporter.applied(9);
        reporter.complete_as_of(Instant::now());
        reporter.moved(&at(7));
        let progress = *reporter.progress().borrow();
        assert_eq!(
            (progress.applied_revision, progress.complete_as_of),
            (7, None)
        );
        let base = MirrorPosition::Base {
            revision: 6,
            copied: None,
        };
        reporter.moved(&base);
        assert_eq!(reporter.progress().borrow().applied_revision, 0);
    }
}
