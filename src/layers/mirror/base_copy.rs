//! Copies all keys as of one revision of the source, as the difference to the destination.
//!
//! Source and destination are read in the order of keys and merged: keys that are missing or have another value are
//! put, keys that the source does not have are deleted, and equal keys are not written. The checkpoint has the last key
//! that is done, so that a new mirror continues after it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::sleep;

use super::{
    ExistingKeys, MirrorEnd, MirrorSide,
    change_queue::MirroredChange,
    destination_writer::{ATTEMPT_DELAY, WriteFailure},
    mirror_checkpoint::MirrorPosition,
    mirror_route::keys_after,
    mirror_task::{MirrorTask, NextPhase, PhaseEnd},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Result},
    kv::KeyValueStream,
    retry::availability::is_temporary,
};

/// The keys of one side, without their prefix.
struct SuffixStream {
    keys: KeyValueStream,
    prefix: usize,
    next: Option<(Bytes, Bytes)>,
}

impl SuffixStream {
    async fn open(
        client: &Client,
        prefix: &Bytes,
        after: Option<&Bytes>,
        revision: i64,
    ) -> Result<Self> {
        let read = keys_after(client, prefix, after.map(|after| &after[..]));
        let mut stream = Self {
            keys: read.revision(revision).stream(),
            prefix: prefix.len(),
            next: None,
        };
        stream.advance().await?;
        Ok(stream)
    }

    async fn advance(&mut self) -> Result<()> {
        self.next = match self.keys.next().await {
            Some(kv) => {
                let kv = kv?;
                Some((kv.key.slice(self.prefix.min(kv.key.len())..), kv.value))
            }
            None => None,
        };
        Ok(())
    }

    fn suffix(&self) -> Option<&Bytes> {
        self.next.as_ref().map(|(suffix, _)| suffix)
    }
}

/// Why the copy was interrupted.
enum CopyFailure {
    Read(MirrorSide, Error),
    Ended(PhaseEnd),
}

impl From<PhaseEnd> for CopyFailure {
    fn from(end: PhaseEnd) -> Self {
        Self::Ended(end)
    }
}

impl From<MirrorEnd> for CopyFailure {
    fn from(end: MirrorEnd) -> Self {
        Self::Ended(end.into())
    }
}

impl From<WriteFailure> for CopyFailure {
    fn from(failure: WriteFailure) -> Self {
        Self::Ended(failure.into())
    }
}

impl MirrorTask {
    /// Copies the keys as of a revision, or of the newest one if it is 0, after those that are copied.
    pub(super) async fn copy_base(
        &mut self,
        revision: i64,
        mut copied: Option<Bytes>,
    ) -> Result<NextPhase, PhaseEnd> {
        let revision = match revision {
            0 => self.source_revision().await?,
            revision => revision,
        };
        self.reporter.copying_base(revision);
        let mut backoff = ATTEMPT_DELAY.start();
        loop {
            let (side, error) = match self.copy_after(revision, &mut copied).await {
                Ok(()) => {
                    return Ok(NextPhase::Follow {
                        revision,
                        partial: None,
                    });
                }
                Err(CopyFailure::Ended(end)) => return Err(end),
                Err(CopyFailure::Read(side, error)) => (side, error),
            };
            match (side, error.kind()) {
                // A newer revision. What is copied already is not written again.
                (MirrorSide::Source, ErrorKind::Compacted) => return Ok(NextPhase::NEW_BASE),
                // The destination is read at its newest revision again.
                (MirrorSide::Destination, ErrorKind::Compacted) => {}
                // The source may have been restored after the revision was chosen.
                (MirrorSide::Source, ErrorKind::FutureRevision) => {
                    self.check_source(revision).await?;
                }
                _ if is_temporary(&error) => self.reporter.interrupted(side, Arc::new(error)),
                _ => return Err(error.into()),
            }
            tokio::select! {
                biased;
                () = self.stop.requested() => return Err(MirrorEnd::Stopped.into()),
                () = sleep(backoff.next_delay(fastrand::f64())) => {}
            }
        }
    }

    async fn copy_after(
        &mut self,
        revision: i64,
        copied: &mut Option<Bytes>,
    ) -> Result<(), CopyFailure> {
        let (on_source, on_destination) = (
            |error| CopyFailure::Read(MirrorSide::Source, error),
            |error| CopyFailure::Read(MirrorSide::Destination, error),
        );
        let route = self.route.clone();
        let after = copied.as_ref();
        let source = SuffixStream::open(&self.source, &route.source_prefix, after, revision);
        let source = async { source.await.map_err(on_source) };
        let mut source = self.stop.unless_requested(source).await?;
        self.reporter.resumed(MirrorSide::Source);
        // The source may have been replaced or restored before the read.
        self.check_source(revision).await?;
        let client = self.writer.client();
        let destination = SuffixStream::open(client, &route.destination_prefix, after, 0);
        let destination = async { destination.await.map_err(on_destination) };
        let mut destination = self.stop.unless_requested(destination).await?;
        self.reporter.resumed(MirrorSide::Destination);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let (in_source, in_destination) = match (source.suffix(), destination.suffix()) {
                (None, None) => break,
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(here), Some(there)) => (here <= there, there <= here),
            };
            // Equal keys are not written, so this may be the only check for long.
            if self.stop.is_requested() {
                return Err(MirrorEnd::Stopped.into());
            }
            let put = in_source.then(|| source.next.clone()).flatten();
            let existing = in_destination.then(|| destination.next.clone()).flatten();
            let advance = async {
                if in_source {
                    source.advance().await.map_err(on_source)?;
                }
                if in_destination {
                    destination.advance().await.map_err(on_destination)?;
                }
                Ok::<_, CopyFailure>(())
            };
            self.stop.unless_requested(advance).await?;
            let Some(change) = self.difference(put, existing) else {
                continue;
            };
            bytes += change.size();
            if !self.writer.limits().allow_batch(batch.len() + 1, bytes) && !batch.is_empty() {
                let full = std::mem::take(&mut batch);
                bytes = change.size();
                self.write_base(&full, revision, copied).await?;
            }
            batch.push(change);
        }
        self.write_base(&batch, revision, copied).await?;
        let applied = MirrorPosition::Applied {
            revision,
            partial: None,
        };
        self.writer.write(&[], applied, &self.reporter).await?;
        Ok(())
    }

    /// Returns the change of one key, given its suffix and value in the source and in the destination.
    fn difference(
        &self,
        source: Option<(Bytes, Bytes)>,
        destination: Option<(Bytes, Bytes)>,
    ) -> Option<MirroredChange> {
        let change = match (source, destination) {
            (Some((suffix, value)), existing) => {
                let is_equal = existing.is_some_and(|(_, existing)| existing == value);
                (!is_equal).then_some((suffix, Some(value)))
            }
            (None, Some((suffix, _))) => {
                (self.existing_keys != ExistingKeys::Keep).then_some((suffix, None))
            }
            (None, None) => None,
        };
        let (suffix, value) = change?;
        let key = self.route.with_suffix(&suffix);
        (!self.route.is_checkpoint(&key)).then_some(MirroredChange { key, value })
    }

    /// Writes changes of the base, in one transaction or in several smaller ones.
    async fn write_base(
        &mut self,
        mut changes: &[MirroredChange],
        revision: i64,
        copied: &mut Option<Bytes>,
    ) -> Result<(), CopyFailure> {
        if self.stop.is_requested() {
            return Err(WriteFailure::Ended(MirrorEnd::Stopped).into());
        }
        while !changes.is_empty() {
            let (now, later) = changes.split_at(self.writer.limits().fitting(changes));
            let last = now
                .last()
                .map(|last| last.key.slice(self.route.destination_prefix.len()..));
            let position = MirrorPosition::Base {
                revision,
                copied: last.clone(),
            };
            match self.writer.write(now, position, &self.reporter).await {
                Ok(()) => (changes, *copied) = (later, last),
                Err(WriteFailure::TooLarge) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }
}
