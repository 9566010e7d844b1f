//! The start of a mirror: checks both clusters, and claims the checkpoint.
//!
//! The claim writes the checkpoint with the random number of the new mirror. The next transaction of an earlier mirror
//! with the same checkpoint then fails its condition, and that mirror ends: the newest one wins.

use super::{
    ExistingKeys,
    mirror_checkpoint::{MirrorCheckpoint, MirrorPosition},
    mirror_route::MirrorRoute,
    mirror_task::regressed,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, get, put},
};

/// A request to start a mirror.
#[derive(Debug, Clone)]
pub(super) struct CheckpointClaim {
    pub(super) source: Client,
    pub(super) destination: Client,
    pub(super) route: MirrorRoute,
    /// The route in the key space of the clusters.
    pub(super) absolute_route: MirrorRoute,
    /// Random number of the mirror.
    pub(super) writer: u64,
    pub(super) existing_keys: ExistingKeys,
    pub(super) start_over: bool,
}

/// A checkpoint that belongs to the mirror.
#[derive(Debug)]
pub(super) struct ClaimedCheckpoint {
    pub(super) checkpoint: MirrorCheckpoint,
    /// Revision of the checkpoint in the destination.
    pub(super) mod_revision: i64,
    /// Revision of the source before the claim.
    pub(super) source_revision: i64,
}

impl CheckpointClaim {
    /// Makes one attempt. An attempt whose outcome is unknown may be repeated.
    pub(super) async fn claim(&self) -> Result<ClaimedCheckpoint> {
        loop {
            let found = self.destination.get(&self.route.checkpoint).await?;
            // Read after the checkpoint: a running mirror may move it beyond an earlier revision of the source.
            let source = self.source.get(self.route.probe_key()).count_only();
            let source = source.await?.header;
            if found.header.cluster_id == source.cluster_id {
                self.absolute_route.check_same_cluster(source.cluster_id)?;
            }
            let found = found.first();
            let decoded = match found {
                Some(kv) => Some(MirrorCheckpoint::decode(&kv.key, &kv.value)?),
                None => None,
            };
            let position = match &decoded {
                Some(checkpoint) => {
                    let own = checkpoint.writer == self.writer;
                    self.position_of(checkpoint, own, source.cluster_id, source.revision)?
                }
                None => MirrorPosition::NOTHING_COPIED,
            };
            let checkpoint = MirrorCheckpoint {
                writer: self.writer,
                source_cluster: source.cluster_id,
                source_prefix: self.absolute_route.source_prefix.clone(),
                destination_prefix: self.absolute_route.destination_prefix.clone(),
                position,
            };
            let earlier_prefix = decoded.as_ref().map(|earlier| &earlier.destination_prefix);
            let owns_prefix = earlier_prefix == Some(&checkpoint.destination_prefix);
            let claimed = self.try_claim(found, &checkpoint, owns_prefix).await?;
            if let Some(mod_revision) = claimed {
                return Ok(ClaimedCheckpoint {
                    checkpoint,
                    mod_revision,
                    source_revision: source.revision,
                });
            }
        }
    }

    /// Returns where the mirror continues, given the checkpoint of an earlier one, or of an earlier attempt.
    fn position_of(
        &self,
        checkpoint: &MirrorCheckpoint,
        own: bool,
        source_cluster: u64,
        source_revision: i64,
    ) -> Result<MirrorPosition> {
        if self.start_over && !own {
            return Ok(MirrorPosition::NOTHING_COPIED);
        }
        checkpoint.check_belongs_to(&self.absolute_route, source_cluster)?;
        let seen = checkpoint.position.revision();
        if source_revision < seen {
            return Err(regressed(seen, source_revision));
        }
        Ok(checkpoint.position.clone())
    }

    /// Writes the checkpoint if it is still as it was found. Returns its revision, or `None` if it has changed. Unless a
    /// mirror with this checkpoint has claimed the prefix of the destination before, fails if there are keys.
    async fn try_claim(
        &self,
        found: Option<&KeyValue>,
        checkpoint: &MirrorCheckpoint,
        owns_prefix: bool,
    ) -> Result<Option<i64>> {
        let key = &self.route.checkpoint;
        let revision = found.map_or(0, |kv| kv.mod_revision);
        let mut conditions = vec![Compare::mod_revision(key).eq(revision)];
        if !owns_prefix && self.existing_keys == ExistingKeys::Refuse {
            conditions.extend(self.route.destination_is_empty());
        }
        let txn = self
            .destination
            .txn()
            .when(conditions)
            .then(put(key, checkpoint.encode()))
            .otherwise(get(key));
        let response = txn.await?;
        if response.succeeded {
            return Ok(Some(response.header.revision));
        }
        let now = match response.responses.first() {
            Some(crate::kv::OpResponse::Get(now)) => now.first().map_or(0, |kv| kv.mod_revision),
            _ => revision,
        };
        if now != revision {
            return Ok(None);
        }
        let reason = format!(
            "the destination has keys with the prefix `{}` that were not written by a mirror with this checkpoint",
            self.route.destination_prefix.escape_ascii()
        );
        Err(Error::new(
            ErrorKind::DestinationNotEmpty,
            Outcome::Rejected,
            reason,
        ))
    }
}
