//! The handle of a running mirror.

use std::fmt;

use actix::Recipient;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};

use super::{MirrorEnd, MirrorLag, MirrorProgress, MirrorState};
use crate::{
    client::{
        Client,
        subscription::{Subscription, subscribe},
    },
    error::{Error, Result},
};

/// A running mirror; see [`mirror`](super). Dropping it stops the mirror in the background; a transaction in flight may
/// still be applied, and the next mirror finds out from the checkpoint.
#[must_use = "dropping the mirror stops it"]
pub struct Mirror {
    pub(super) source: Client,
    /// Keeps the client running.
    pub(super) _destination: Client,
    /// Set to stop the mirror, which also stops when this is dropped.
    pub(super) stop: watch::Sender<bool>,
    pub(super) state: watch::Receiver<MirrorState>,
    pub(super) progress: watch::Receiver<MirrorProgress>,
}

impl Mirror {
    /// Returns the current state.
    pub fn state(&self) -> MirrorState {
        let state = self.state.borrow().clone();
        let ended = matches!(state, MirrorState::Ended(_));
        if !ended && self.state.has_changed().is_err() {
            return shut_down();
        }
        state
    }

    /// Returns the current state and each later one. A slow reader gets the latest state only. Ends after
    /// [`MirrorState::Ended`].
    pub fn states(&self) -> impl Stream<Item = MirrorState> + Send + Unpin + use<> {
        let mut ended = false;
        let states = WatchStream::new(self.state.clone()).map(Some);
        // The task ends without a last state if a client is shut down.
        let states = states.chain(tokio_stream::once(None));
        states.map_while(move |state| {
            if ended {
                return None;
            }
            let state = state.unwrap_or_else(shut_down);
            ended = matches!(state, MirrorState::Ended(_));
            Some(state)
        })
    }

    /// Sends the current state, and each later one, to an actor. A slow actor gets the latest state only. The delivery
    /// ends after [`MirrorState::Ended`], when the actor stops, or when the subscription is dropped.
    pub fn deliver_to(&self, recipient: Recipient<MirrorState>) -> Subscription {
        subscribe(&self.source, self.states(), recipient, Some(shut_down()))
    }

    /// Returns how far the mirror is.
    pub fn progress(&self) -> MirrorProgress {
        *self.progress.borrow()
    }

    /// Returns how far the destination is behind the source; `None` until the mirror has caught up for the first time.
    pub fn lag(&self) -> Option<MirrorLag> {
        self.progress().lag()
    }

    /// Waits until the destination has all changes of the source up to a revision, for example the revision of a write,
    /// and returns the progress. Fails if the mirror ends before.
    pub async fn applied(&self, revision: i64) -> Result<MirrorProgress> {
        let mut progress = self.progress.clone();
        let is_applied = |progress: &MirrorProgress| progress.applied_revision >= revision;
        tokio::select! {
            biased;
            Ok(progress) = progress.wait_for(is_applied) => Ok(*progress),
            end = self.ended() => Err(match end {
                MirrorEnd::Failed(error) => error,
                MirrorEnd::Stopped => {
                    Error::invalid("the mirror was stopped before the revision was applied")
                }
            }),
        }
    }

    /// Waits until the mirror has ended, and returns why.
    pub async fn ended(&self) -> MirrorEnd {
        let mut state = self.state.clone();
        let ended = state.wait_for(|state| matches!(state, MirrorState::Ended(_)));
        match ended.await.as_deref() {
            Ok(MirrorState::Ended(end)) => end.clone(),
            _ => MirrorEnd::Failed(Error::shut_down()),
        }
    }

    /// Stops the mirror: waits for the transaction in flight, moves the checkpoint to the revision up to which the copy
    /// is complete, and returns the progress. Fails with the reason if the mirror has ended by itself.
    pub async fn stop(self) -> Result<MirrorProgress> {
        self.stop.send_replace(true);
        match self.ended().await {
            MirrorEnd::Stopped => Ok(self.progress()),
            MirrorEnd::Failed(error) => Err(error),
        }
    }
}

fn shut_down() -> MirrorState {
    MirrorState::Ended(MirrorEnd::Failed(Error::shut_down()))
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror")
            .field("state", &self.state())
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}
