//! The options of a mirror.

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    Mirror, MirrorEnd,
    claim_checkpoint::{CheckpointClaim, ClaimedCheckpoint},
    destination_writer::DestinationWriter,
    mirror_progress::MirrorReporter,
    mirror_route::MirrorRoute,
    mirror_task::{MirrorTask, report_source_revision},
    stop_signal::StopMirror,
};
use crate::{
    client::Client,
    error::{Error, Result},
    request::IntoBytes,
    retry::availability::attempt_until_available,
};

/// Prefix of the default key of a checkpoint.
const DEFAULT_CHECKPOINTS: &[u8] = b"actix-etcd/mirrors/";

impl Client {
    /// Copies all keys with a prefix to another cluster or to another prefix, and keeps the copy up to date: the first
    /// step is [`to`](MirrorFrom::to). An empty prefix selects all keys. See [`mirror`](super).
    pub fn mirror(&self, prefix: impl IntoBytes) -> MirrorFrom {
        MirrorFrom {
            source: self.clone(),
            prefix: prefix.into_bytes(),
        }
    }
}

/// The source of a mirror; see [`Client::mirror`].
#[derive(Debug, Clone)]
#[must_use = "a mirror needs a destination"]
pub struct MirrorFrom {
    source: Client,
    prefix: Bytes,
}

impl MirrorFrom {
    /// Sets the destination: the client of a cluster, which may be the same one, and the prefix that replaces the
    /// prefix of the source.
    pub fn to(self, destination: &Client, prefix: impl IntoBytes) -> MirrorBuilder {
        let destination_prefix = prefix.into_bytes();
        MirrorBuilder {
            source: self.source,
            destination: destination.clone(),
            route: MirrorRoute {
                source_prefix: self.prefix,
                checkpoint: [DEFAULT_CHECKPOINTS, &destination_prefix].concat().into(),
                destination_prefix,
            },
            existing_keys: ExistingKeys::default(),
            merge: false,
            start_over: false,
            wait: false,
        }
    }
}

/// What a mirror does with keys of the destination that the source does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ExistingKeys {
    /// The first start, without a checkpoint or with one of another destination prefix, fails with
    /// [`DestinationNotEmpty`](crate::ErrorKind::DestinationNotEmpty) if the destination has any key with its prefix: a
    /// wrong prefix must not delete data. Once the checkpoint has the prefix, it belongs to the mirror, and a copy of
    /// the base deletes such keys.
    #[default]
    Refuse,
    /// They are deleted whenever the base is copied, so that the destination equals the source.
    Delete,
    /// They are kept. A key that is deleted from the source while the base must be copied again stays, too.
    Keep,
}

/// Options of a [`Mirror`]; see [`Client::mirror`].
#[derive(Debug, Clone)]
#[must_use = "a mirror does nothing until it is started"]
pub struct MirrorBuilder {
    source: Client,
    destination: Client,
    route: MirrorRoute,
    existing_keys: ExistingKeys,
    merge: bool,
    start_over: bool,
    wait: bool,
}

impl MirrorBuilder {
    /// Sets the key of the checkpoint, in the destination. It may have the prefix of the destination; a key of the
    /// source that would overwrite it is not copied. Default: `actix-etcd/mirrors/` and the prefix of the destination.
    pub fn checkpoint(mut self, key: impl IntoBytes) -> Self {
        self.route.checkpoint = key.into_bytes();
        self
    }

    /// Sets what happens to keys of the destination that the source does not have. Default:
    /// [`ExistingKeys::Refuse`].
    pub fn existing_keys(mut self, existing_keys: ExistingKeys) -> Self {
        self.existing_keys = existing_keys;
        self
    }

    /// Writes only the last value of a key that changed several times while the mirror was busy: it catches up faster
    /// over a slow network. The destination still has a state of the source after each transaction, but not every
    /// state. Default: every value of every key is written.
    pub fn merge_updates(mut self) -> Self {
        self.merge = true;
        self
    }

    /// Ignores the position of the checkpoint, also if it belongs to another cluster or prefix, and copies the base
    /// again: the difference between source and destination. Keys that the source does not have are deleted, unless
    /// they are [kept](ExistingKeys::Keep). Default: continues at the checkpoint.
    pub fn start_over(mut self) -> Self {
        self.start_over = true;
        self
    }

    /// Waits without a deadline until both clusters respond: temporary errors are retried. Other errors fail at once.
    /// Dropping the future stops waiting. Default: fails after the clients' `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }

    /// Starts the mirror: reads the checkpoint, claims it, and copies in the background, on the thread of the source's
    /// client.
    ///
    /// Fails, and has written nothing,
    /// - with [`CheckpointMismatch`](crate::ErrorKind::CheckpointMismatch) if the checkpoint belongs to a mirror of
    ///   another cluster or of other prefixes, or is no checkpoint,
    /// - with [`RevisionRegressed`](crate::ErrorKind::RevisionRegressed) if the source is at an older revision than the
    ///   checkpoint,
    /// - with [`DestinationNotEmpty`](crate::ErrorKind::DestinationNotEmpty), see [`ExistingKeys::Refuse`],
    /// - with [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if source and destination are the same cluster and
    ///   their prefixes overlap, or the checkpoint has the prefix of the source,
    /// - with the error of a request to one of the clusters.
    pub async fn start(self) -> Result<Mirror> {
        let claim = CheckpointClaim {
            source: self.source.clone(),
            destination: self.destination.clone(),
            route: self.route.clone(),
            absolute_route: self.route.absolute(&self.source, &self.destination),
            writer: fastrand::u64(..),
            existing_keys: self.existing_keys,
            start_over: self.start_over,
        };
        let claimed = attempt_until_available(self.wait, || claim.claim()).await?;
        self.spawn(claimed)
    }

    fn spawn(self, claimed: ClaimedCheckpoint) -> Result<Mirror> {
        let (stop, requested) = watch::channel(false);
        let stop_signal = StopMirror(requested);
        let position = &claimed.checkpoint.position;
        let reporter = MirrorReporter::new(position, claimed.source_revision);
        let (state, progress) = (reporter.states(), reporter.progress());
        let (source, destination) = (
            self.source.for_background(),
            self.destination.for_background(),
        );
        let probe_key = self.route.probe_key();
        let source_cluster = claimed.checkpoint.source_cluster;
        let writer = DestinationWriter::new(
            destination,
            &self.route,
            claimed.checkpoint,
            claimed.mod_revision,
            stop_signal.clone(),
        );
        let task = MirrorTask {
            source: source.clone(),
            source_cluster,
            route: self.route,
            existing_keys: self.existing_keys,
            merge: self.merge,
            writer,
            reporter: reporter.clone(),
            stop: stop_signal.clone(),
        };
        // On the client's thread, so that the copy stays current while the application blocks its own threads.
        let started = self.source.run(move || {
            actix_rt::spawn(async move {
                tokio::select! {
                    biased;
                    () = stop_signal.handle_dropped() => reporter.ended(MirrorEnd::Stopped),
                    () = task.run() => {}
                    () = report_source_revision(source, probe_key, reporter.clone()) => {}
                }
            });
        });
        if !started {
            return Err(Error::shut_down());
        }
        Ok(Mirror {
            source: self.source,
            _destination: self.destination,
            stop,
            state,
            progress,
        })
    }
}
