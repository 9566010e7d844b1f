//! The states of a watch and the transitions between them.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use crate::{error::Error, runtime::abort_on_drop::AbortOnDrop};

/// State of a watch. `CancelWatch`, `WatchShutdown` and an outage longer than `max_outage` lead from every state to
/// `Ended`.
#[derive(Debug)]
pub(super) enum WatchState {
    /// A task gets a token: the server rejected the stream's token, or the client has none yet. Then `BackingOff`. On
    /// failure: again after a delay, or `Ended` if the server refuses the credentials.
    AwaitingToken { gap: Gap },
    /// Waits before the next attempt to attach. Then `Attaching`, or `AwaitingToken` if the client has no token.
    BackingOff { gap: Gap },
    /// The hub chooses a stream, and the server creates the watch on it. Then `Attached`. If the stream fails:
    /// `Attaching` or `BackingOff`. If the token is rejected: `AwaitingToken`. If the start is compacted: `Resyncing`,
    /// `Paused` or `Ended`. If the server refuses the watch: `Ended`.
    Attaching { gap: Gap, token_generation: u64 },
    /// Events arrive. Full buffer: `Paused`. If the cluster was restored from a backup: `Resyncing` or `Ended`. On
    /// failure: as in `Attaching`.
    Attached {
        since: Instant,
        token_generation: u64,
    },
    /// The watch is not on the server until the consumer has read half of its buffer. Then `Attaching`.
    Paused {
        /// Set if the watch was not attached when it was paused.
        gap: Option<Gap>,
    },
    /// The range is read again after a compaction, or because the cluster was restored from a backup. Then `Attaching`.
    /// On failure: again after a delay, or `Ended` if the user may not read the range.
    Resyncing { gap: Gap, cause: ResyncCause },
    /// The consumer's buffer contains the last event. Final.
    Ended,
}

/// Why the range is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResyncCause {
    /// Revisions that were not delivered are compacted.
    Compaction,
    /// The cluster was restored from a backup: its revisions are lower than before.
    Restore,
}

/// Why a watch has no stream, and what to complete when it has one again.
#[derive(Debug)]
pub(super) enum Gap {
    /// The watch was never created. The sender receives the result.
    Opening(oneshot::Sender<Result<(), Error>>),
    /// The watch was interrupted.
    Outage(WatchOutage),
}

/// Time without a stream.
#[derive(Debug)]
pub(super) struct WatchOutage {
    pub(super) since: Instant,
    /// Error of the last attempt to continue.
    pub(super) last_error: Option<Arc<Error>>,
    /// Task that sends `OutageTimedOut`; `None` without a `max_outage`. Aborted when the outage ends, because it may
    /// sleep for hours.
    pub(super) _timer: Option<AbortOnDrop>,
}

impl WatchState {
    /// Moves to the state `next` that waits for a stream. Calls `start_outage` if the watch was attached or paused.
    pub(super) fn interrupt(
        &mut self,
        start_outage: impl FnOnce() -> WatchOutage,
        next: impl FnOnce(Gap) -> Self,
    ) {
        *self = match std::mem::replace(self, Self::Ended) {
            Self::Attached { .. } | Self::Paused { gap: None } => next(Gap::Outage(start_outage())),
            Self::AwaitingToken { gap }
            | Self::BackingOff { gap }
            | Self::Attaching { gap, .. }
            | Self::Paused { gap: Some(gap) }
            | Self::Resyncing { gap, .. } => next(gap),
            Self::Ended => Self::Ended,
        };
    }

    /// Moves from `Attaching` to `Attached` and returns the gap that ends. Returns `None` in any other state.
    pub(super) fn attach(&mut self, now: Instant) -> Option<Gap> {
        let &mut Self::Attaching {
            token_generation, ..
        } = self
        else {
            return None;
        };
        let attached = Self::Attached {
            since: now,
            token_generation,
        };
        std::mem::replace(self, attached).into_gap()
    }

    /// Moves to `Paused`.
    pub(super) fn pause(&mut self) {
        if !matches!(self, Self::Ended) {
            let gap = std::mem::replace(self, Self::Ended).into_gap();
            *self = Self::Paused { gap };
        }
    }

    /// Moves to `Ended` and returns the gap that was open.
    pub(super) fn end(&mut self) -> Option<Gap> {
        std::mem::replace(self, Self::Ended).into_gap()
    }

    fn into_gap(self) -> Option<Gap> {
        match self {
            Self::AwaitingToken { gap }
            | Self::BackingOff { gap }
            | Self::Attaching { gap, .. }
            | Self::Resyncing { gap, .. } => Some(gap),
            Self::Paused { gap } => gap,
            Self::Attached { .. } | Self::Ended => None,
        }
    }

    fn gap(&self) -> Option<&Gap> {
        match self {
            Self::AwaitingToken { gap }
            | Self::BackingOff { gap }
            | Self::Attaching { gap, .. }
            | Self::Resyncing { gap, .. } => Some(gap),
            Self::Paused { gap } => gap.as_ref(),
            Self::Attached { .. } | Self::Ended => None,
        }
    }

    /// Returns whether the watch was never created.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.gap(), Some(Gap::Opening(_)))
    }

    pub(super) fn outage(&self) -> Option<&WatchOutage> {
        match self.gap() {
            Some(Gap::Outage(outage)) => Some(outage),
            Some(Gap::Opening(_)) | None => None,
        }
    }

    /// Restarts the time of an outage that is in progress. Keeps its last error.
    pub(super) fn restart_outage(&mut self, start_outage: impl FnOnce() -> WatchOutage) {
        if let Some(Gap::Outage(outage)) = self.gap_mut() {
            let last_error = outage.last_error.take();
            *outage = WatchOutage {
                last_error,
                ..start_outage()
            };
        }
    }

    /// Stores the error of an attempt to continue, to be reported if the outage lasts too long.
    pub(super) fn record_error(&mut self, error: Arc<Error>) {
        if let Some(Gap::Outage(outage)) = self.gap_mut() {
            outage.last_error = Some(error);
        }
    }

    fn gap_mut(&mut self) -> Option<&mut Gap> {
        match self {
            Self::AwaitingToken { gap }
            | Self::BackingOff { gap }
            | Self::Attaching { gap, .. }
            | Self::Resyncing { gap, .. } => Some(gap),
            Self::Paused { gap } => gap.as_mut(),
            Self::Attached { .. } | Self::Ended => None,
        }
    }

    /// Returns the generation of the token that the stream was, or is to be, opened with.
    pub(super) fn token_generation(&self) -> Option<u64> {
        match self {
            Self::Attaching {
                token_generation, ..
            }
            | Self::Attached {
                token_generation, ..
            } => Some(*token_generation),
            _ => None,
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
    }

    /// Returns whether the range is read because the cluster was restored.
    pub(super) fn replaces_history(&self) -> bool {
        matches!(
            self,
            Self::Resyncing {
                cause: ResyncCause::Restore,
                ..
            }
        )
    }

    /// Returns whether the watch waits for a token, a delay or a stream.
    pub(super) fn is_attaching(&self) -> bool {
        matches!(
            self,
            Self::AwaitingToken { .. } | Self::BackingOff { .. } | Self::Attaching { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attaching(gap: Gap) -> WatchState {
        WatchState::Attaching {
            gap,
            token_generation: 7,
        }
    }

    fn outage() -> WatchOutage {
        WatchOutage {
            since: Instant::now(),
            last_error: None,
            _timer: None,
        }
    }

    fn no_new_outage() -> WatchOutage {
        panic!("the gap is open already")
    }

    #[test]
    fn opening_watch_has_no_outage() {
        let (opened, _result) = oneshot::channel();
        let mut state = attaching(Gap::Opening(opened));
        state.interrupt(no_new_outage, |gap| WatchState::BackingOff { gap });
        assert!(matches!(state, WatchState::BackingOff { .. }));
        assert!(state.is_opening() && state.outage().is_none());
    }

    #[test]
    fn outage_lasts_from_first_interruption_until_attached() {
        let mut state = WatchState::Attached {
            since: Instant::now(),
            token_generation: 7,
        };
        let first = outage();
        let since = first.since;
        state.interrupt(|| first, attaching);
        state.interrupt(no_new_outage, |gap| WatchState::Resyncing {
            gap,
            cause: ResyncCause::Compaction,
        });
        state.interrupt(no_new_outage, attaching);
        assert_eq!(state.outage().map(|outage| outage.since), Some(since));
        assert!(matches!(state.attach(Instant::now()), Some(Gap::Outage(_))));
        assert!(state.is_attached() && state.outage().is_none());
        assert_eq!(state.token_generation(), Some(7));
    }

    #[test]
    fn pause_keeps_an_open_outage_and_starts_none() {
        let mut state = WatchState::Attached {
            since: Instant::now(),
            token_generation: 7,
        };
        state.pause();
        assert!(matches!(state, WatchState::Paused { gap: None }));
        state.interrupt(outage, attaching);
        state.pause();
        assert!(state.outage().is_some());
    }

    #[test]
    fn ended_watch_stays_ended() {
        let mut state = WatchState::Ended;
        state.interrupt(no_new_outage, attaching);
        state.pause();
        assert!(state.attach(Instant::now()).is_none() && state.end().is_none());
        assert!(matches!(state, WatchState::Ended));
    }
}
