//! Writes transactions to the destination, each exactly once and in order.
//!
//! Each transaction writes the checkpoint as well, on the condition that it still has the revision of this mirror's last
//! write. So of several attempts with an unknown outcome at most one is applied, no late attempt is applied after a
//! later transaction, and only one of several mirrors with the same checkpoint can write. After an unknown outcome, or
//! if the condition does not hold, the checkpoint is read, and shows what was applied and by which mirror.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::sleep;

use super::{
    MirrorEnd, MirrorSide,
    change_queue::{DestinationLimits, MirroredChange},
    mirror_checkpoint::{MirrorCheckpoint, MirrorPosition},
    mirror_progress::MirrorReporter,
    mirror_route::MirrorRoute,
    stop_signal::StopMirror,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, put},
    retry::availability::is_temporary,
    runtime::backoff::{Backoff, BackoffTimer},
};

/// Delays between attempts, each of which is a request with its own retries.
pub(super) const ATTEMPT_DELAY: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2)).jitter(0.3);

pub(super) struct DestinationWriter {
    client: Client,
    key: Bytes,
    /// The checkpoint as of the last write.
    checkpoint: MirrorCheckpoint,
    /// Revision of the checkpoint in the destination.
    mod_revision: i64,
    limits: DestinationLimits,
    stop: StopMirror,
}

/// Why a transaction was not written.
#[derive(Debug)]
pub(super) enum WriteFailure {
    /// The destination allows only smaller ones.
    TooLarge,
    /// The checkpoint is at another position than expected: the destination was restored from a backup, or a larger
    /// transaction was applied late. The mirror continues at that position.
    Moved,
    /// The mirror must end.
    Ended(MirrorEnd),
}

impl From<Error> for WriteFailure {
    fn from(error: Error) -> Self {
        Self::Ended(MirrorEnd::Failed(error))
    }
}

impl DestinationWriter {
    /// Creates a writer for a checkpoint that this mirror has written at `mod_revision`.
    pub(super) fn new(
        client: Client,
        route: &MirrorRoute,
        checkpoint: MirrorCheckpoint,
        mod_revision: i64,
        stop: StopMirror,
    ) -> Self {
        Self {
            client,
            key: route.checkpoint.clone(),
            checkpoint,
            mod_revision,
            limits: DestinationLimits::default(),
            stop,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn limits(&self) -> &DestinationLimits {
        &self.limits
    }

    /// Returns the position of the checkpoint.
    pub(super) fn position(&self) -> &MirrorPosition {
        &self.checkpoint.position
    }

    /// Applies changes and moves the checkpoint to a position, atomically. Repeats attempts until the result is known.
    pub(super) async fn write(
        &mut self,
        changes: &[MirroredChange],
        position: MirrorPosition,
        reporter: &MirrorReporter,
    ) -> Result<(), WriteFailure> {
        let mut backoff = ATTEMPT_DELAY.start();
        loop {
            let error = match self.attempt(changes, &position).await {
                Ok(Some(revision)) => {
                    self.written(position, revision, changes, reporter);
                    return Ok(());
                }
                Ok(None) => None,
                Err(error) => Some(error),
            };
            match &error {
                Some(error) if error.kind() == ErrorKind::TooManyOps => {
                    if changes.is_empty() || !self.limits.refused_ops() {
                        return Err(error.clone().into());
                    }
                    return Err(WriteFailure::TooLarge);
                }
                Some(error) if error.kind() == ErrorKind::RequestTooLarge => {
                    if !self.limits.refused_bytes(changes) {
                        return Err(error.clone().into());
                    }
                    return Err(WriteFailure::TooLarge);
                }
                Some(error) if is_temporary(error) => {
                    self.pause(error, &mut backoff, reporter).await?;
                    if error.outcome() != Outcome::Unknown {
                        continue;
                    }
                }
                Some(error) => return Err(error.clone().into()),
                None => {}
            }
            if self.is_applied(&position, reporter).await? {
                reporter.resumed(MirrorSide::Destination);
                reporter.wrote(changes.len());
                return Ok(());
            }
        }
    }

    /// Sends the transaction once. Returns its revision, or `None` if the checkpoint was changed since the last write.
    async fn attempt(
        &self,
        changes: &[MirroredChange],
        position: &MirrorPosition,
    ) -> Result<Option<i64>> {
        let checkpoint = MirrorCheckpoint {
            position: position.clone(),
            ..self.checkpoint.clone()
        };
        let checkpoint = put(&self.key, checkpoint.encode());
        let txn = self
            .client
            .txn()
            .when(Compare::mod_revision(&self.key).eq(self.mod_revision))
            .then(self.limits.operations(checkpoint, changes));
        let response = txn.await?;
        Ok(response.succeeded.then_some(response.header.revision))
    }

    fn written(
        &mut self,
        position: MirrorPosition,
        revision: i64,
        changes: &[MirroredChange],
        reporter: &MirrorReporter,
    ) {
        self.checkpoint.position = position;
        self.mod_revision = revision;
        reporter.resumed(MirrorSide::Destination);
        reporter.wrote(changes.len());
    }

    /// Reads the checkpoint, and returns whether the transaction to this position was applied. Repeats the read until
    /// it succeeds.
    async fn is_applied(
        &mut self,
        position: &MirrorPosition,
        reporter: &MirrorReporter,
    ) -> Result<bool, WriteFailure> {
        let mut backoff = ATTEMPT_DELAY.start();
        let found = loop {
            match self.client.get(&self.key).await {
                Ok(found) => {
                    reporter.resumed(MirrorSide::Destination);
                    break found.kvs.into_iter().next();
                }
                Err(error) if is_temporary(&error) => {
                    self.pause(&error, &mut backoff, reporter).await?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let (checkpoint, mod_revision) = own_checkpoint(&self.key, found, self.checkpoint.writer)?;
        let expected = checkpoint.position == self.checkpoint.position;
        (self.checkpoint, self.mod_revision) = (checkpoint, mod_revision);
        if self.checkpoint.position == *position {
            Ok(true)
        } else if expected {
            Ok(false)
        } else {
            Err(WriteFailure::Moved)
        }
    }

    /// Waits before the next attempt. Fails if the mirror must stop.
    async fn pause(
        &self,
        error: &Error,
        backoff: &mut BackoffTimer,
        reporter: &MirrorReporter,
    ) -> Result<(), WriteFailure> {
        reporter.interrupted(MirrorSide::Destination, Arc::new(error.clone()));
        tokio::select! {
            biased;
            () = self.stop.requested() => Err(WriteFailure::Ended(MirrorEnd::Stopped)),
            () = sleep(backoff.next_delay(fastrand::f64())) => Ok(()),
        }
    }
}

/// Returns the checkpoint that was read, and its revision. Fails if this mirror did not write it.
fn own_checkpoint(
    key: &[u8],
    found: Option<KeyValue>,
    writer: u64,
) -> Result<(MirrorCheckpoint, i64)> {
    let name = key.escape_ascii();
    let Some(kv) = found else {
        let reason = format!("the checkpoint `{name}` was deleted while the mirror ran");
        return Err(Error::new(
            ErrorKind::CheckpointMismatch,
            Outcome::Rejected,
            reason,
        ));
    };
    let checkpoint = MirrorCheckpoint::decode(key, &kv.value)?;
    if checkpoint.writer != writer {
        let reason = format!("another mirror has started with the checkpoint `{name}`");
        return Err(Error::new(
            ErrorKind::CheckpointTaken,
            Outcome::Rejected,
            reason,
        ));
    }
    Ok((checkpoint, kv.mod_revision))
}
