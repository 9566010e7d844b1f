//! Sends one chunk until it is written or has failed.
//!
//! # Conditions against late copies
//! An attempt with an unknown outcome may still be in flight, for example in a frozen member, when its repetition has
//! been applied. If it arrived after a later write of one of its keys, it would restore the old value. Therefore each
//! transaction has a condition that only one of the attempts can meet: the key of its first put was last changed at or
//! before a revision that existed when the attempt was sent. A transaction without puts has this condition on all its
//! keys. If another writer changes the key meanwhile, the condition fails, and the transaction is sent again with the
//! newer revision.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    BulkWrite, OnUnknown,
    bulk_write::KeyChange,
    chunk_plan::{Chunk, ChunkLimits, encoded_size},
    failure_reaction::{FailureReaction, reaction_to},
};
use crate::{
    client::Client,
    error::{Error, Outcome, Result},
    kv::{Compare, KeyValue},
    layers::get_many::get_many,
    runtime::backoff::{Backoff, BackoffTimer},
};

/// Delay between attempts of a chunk, each of which is a request with its own retries.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
    .factor(2.0)
    .jitter(0.3);

/// What all chunks of a bulk share.
pub(super) struct Delivery {
    pub(super) client: Client,
    pub(super) timeout: Option<Duration>,
    pub(super) give_up_after: Duration,
    pub(super) on_unknown: OnUnknown,
    pub(super) limits: ChunkLimits,
    /// Newest known revision; 0 before the first response.
    pub(super) revision: AtomicI64,
}

/// A chunk that needs no more requests.
pub(super) struct Delivered {
    pub(super) writes: Vec<BulkWrite>,
    /// Results of consecutive parts. Writes without a result were not sent, because the bulk must stop.
    pub(super) parts: Vec<DeliveredPart>,
}

pub(super) struct DeliveredPart {
    /// Positions in the input.
    pub(super) positions: Range<u64>,
    pub(super) first_key: Bytes,
    pub(super) last_key: Bytes,
    /// Size of keys and values.
    pub(super) bytes: u64,
    /// The revision at which the writes were applied, or known to be applied.
    pub(super) result: Result<i64>,
    /// Whether other writes would fail as well.
    pub(super) stop: bool,
}

/// How an attempt to write a part of a chunk ended.
enum PartResult {
    Written(i64),
    Split,
    Failed { error: Error, stop: bool },
}

impl Delivery {
    pub(super) async fn deliver(self: Arc<Self>, chunk: Chunk) -> Delivered {
        let Chunk { start, writes } = chunk;
        let mut parts = Vec::new();
        // The keys of a chunk differ, so the order of its parts does not matter.
        let all = 0..writes.len();
        let mut unsent = vec![all];
        while let Some(part) = unsent.pop() {
            let result = if self.limits.allow(&writes[part.clone()]) {
                self.write(&writes[part.clone()]).await
            } else {
                PartResult::Split
            };
            let (result, stop) = match result {
                PartResult::Split => {
                    let middle = part.start + part.len() / 2;
                    unsent.push(middle..part.end);
                    unsent.push(part.start..middle);
                    continue;
                }
                PartResult::Written(revision) => (Ok(revision), false),
                PartResult::Failed { error, stop } => (Err(error), stop),
            };
            let (Some(first), Some(last)) =
                (writes[part.clone()].first(), writes[part.clone()].last())
            else {
                continue;
            };
            let payload = writes[part.clone()].iter().map(BulkWrite::payload);
            parts.push(DeliveredPart {
                positions: start + part.start as u64..start + part.end as u64,
                first_key: first.key().clone(),
                last_key: last.key().clone(),
                bytes: payload.sum::<usize>() as u64,
                result,
                stop,
            });
            if stop {
                break;
            }
        }
        Delivered { writes, parts }
    }

    /// Writes a part of a chunk, with attempts until the bulk gives up.
    async fn write(&self, writes: &[BulkWrite]) -> PartResult {
        let give_up = Instant::now() + self.give_up_after;
        let mut backoff = RETRY_BACKOFF.start();
        let mut unknown_before = false;
        loop {
            let error = match self.attempt(writes).await {
                Ok(Some(revision)) => return PartResult::Written(revision),
                // Another writer changed the key of the condition; the known revision is newer now.
                Ok(None) if Instant::now() < give_up => continue,
                Ok(None) => condition_never_met(),
                Err(error) => error,
            };
            unknown_before |= error.outcome() == Outcome::Unknown;
            let reaction =
                reaction_to(error.kind(), error.outcome(), writes.len(), self.on_unknown);
            let error = if unknown_before {
                error.with_outcome(Outcome::Unknown)
            } else {
                error
            };
            match reaction {
                FailureReaction::SplitOps => {
                    self.limits.refused_ops(writes.len());
                    return PartResult::Split;
                }
                FailureReaction::SplitBytes => {
                    self.limits.refused_bytes(encoded_size(writes));
                    return PartResult::Split;
                }
                FailureReaction::Isolate => return PartResult::Split,
                FailureReaction::Fail => return PartResult::Failed { error, stop: false },
                FailureReaction::Stop => return PartResult::Failed { error, stop: true },
                FailureReaction::ReadBack => {
                    if let Ok(Some(revision)) = self.read_back(writes).await {
                        return PartResult::Written(revision);
                    }
                }
                FailureReaction::Retry => {}
            }
            if !wait(&mut backoff, give_up).await {
                return PartResult::Failed { error, stop: true };
            }
        }
    }

    /// Sends the transaction once. Returns its revision, or `None` if the condition did not hold.
    async fn attempt(&self, writes: &[BulkWrite]) -> Result<Option<i64>> {
        let known = self.known_revision(writes).await?;
        let unchanged = |write: &BulkWrite| Compare::mod_revision(write.key()).lt(known + 1);
        let conditions: Vec<_> = match writes.iter().find(|write| write.value().is_some()) {
            Some(put) => vec![unchanged(put)],
            None => writes.iter().map(unchanged).collect(),
        };
        let operations: Vec<_> = writes.iter().map(BulkWrite::operation).collect();
        let mut txn = self.client.txn().when(conditions).then(operations);
        if let Some(timeout) = self.timeout {
            txn = txn.timeout(timeout);
        }
        let response = txn.await?;
        self.revision.fetch_max(response.header.revision, Relaxed);
        Ok(response.succeeded.then_some(response.header.revision))
    }

    async fn known_revision(&self, writes: &[BulkWrite]) -> Result<i64> {
        let known = self.revision.load(Relaxed);
        let Some(first) = writes.first().filter(|_| known == 0) else {
            return Ok(known);
        };
        let read = self.client.get(first.key()).count_only().await;
        // Nothing was written.
        let read = read.map_err(|error| error.with_outcome(Outcome::NotSent))?;
        Ok(self
            .revision
            .fetch_max(read.header.revision, Relaxed)
            .max(read.header.revision))
    }

    /// Reads the keys. Returns the revision of the read if all of them have the state that the writes lead to.
    async fn read_back(&self, writes: &[BulkWrite]) -> Result<Option<i64>> {
        let keys = writes.iter().map(BulkWrite::key);
        let mut read = get_many(keys).on(&self.client);
        if let Some(timeout) = self.timeout {
            read = read.timeout(timeout);
        }
        let found = read.await?;
        let all = writes.iter().zip(&found.kvs);
        let written = all.into_iter().all(|(write, kv)| shows(write, kv.as_ref()));
        Ok(written.then_some(found.revision))
    }
}

/// Waits before the next attempt. Returns `false` if there is no time for one.
async fn wait(backoff: &mut BackoffTimer, give_up: Instant) -> bool {
    let delay = backoff.next_delay(fastrand::f64());
    if Instant::now() + delay >= give_up {
        return false;
    }
    sleep(delay).await;
    true
}

/// Returns whether the key has the state that the write leads to.
fn shows(write: &BulkWrite, found: Option<&KeyValue>) -> bool {
    match (write.change(), found) {
        (KeyChange::Delete, None) => true,
        (KeyChange::Put { value, lease }, Some(kv)) => kv.value == *value && kv.lease == *lease,
        (KeyChange::Delete, Some(_)) | (KeyChange::Put { .. }, None) => false,
    }
}

fn condition_never_met() -> Error {
    Error::new(
        crate::error::ErrorKind::Unavailable,
        Outcome::Rejected,
        "another writer changes the same keys all the time",
    )
}
