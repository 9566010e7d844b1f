//! Sends one chunk until it is written or has failed.
//!
//! # Conditions against late copies
//! An attempt with an unknown outcome may still be in flight, for example in a frozen member, when its repetition has
//! been applied. If it arrived after a later write of one of its keys, it would restore the old value. Therefore each
//! transaction has a condition that only one of the attempts can meet: the key of its first put was last changed at or
//! before a revision that existed when the attempt was sent. A transaction without puts has this condition on all its
//! keys. If another writer changes the key meanwhile, the condition fails, and the transaction is sent again with the
//! newer revision. `ReadBack` regards an attempt as resolved only if the key of its condition has changed since: an
//! attempt whose condition still holds may be applied later, even if the keys already have its values.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
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
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, ResponseHeader},
    layers::get_many::get_many,
    runtime::backoff::{Backoff, BackoffTimer},
};

/// Delay between attempts of a chunk, each of which is a request with its own retries.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2))
    .factor(2.0)
    .jitter(0.3);

/// Number of attempts after an unmet condition that follow without a delay.
const IMMEDIATE_RETRIES: u32 = 3;

/// What all chunks of a bulk share.
pub(super) struct Delivery {
    pub(super) client: Client,
    pub(super) timeout: Option<Duration>,
    pub(super) give_up_after: Duration,
    pub(super) on_unknown: OnUnknown,
    pub(super) limits: ChunkLimits,
    /// Newest known revision; 0 before the first response.
    pub(super) revision: AtomicI64,
    /// Cluster of the first response; 0 before.
    pub(super) cluster: AtomicU64,
}

/// A chunk that needs no more requests.
pub(super) struct Delivered {
    pub(super) writes: Vec<BulkWrite>,
    /// Results of consecutive writes. Writes without a result were not sent, because the bulk must stop.
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

/// Consecutive writes of a chunk that still have to be sent, or sent again.
struct UnsentPart {
    indexes: Range<usize>,
    /// Whether an attempt that contained these writes may have been applied.
    unknown: bool,
}

/// How the attempts to write a part of a chunk ended.
enum PartResult {
    Written(i64),
    Split { unknown: bool },
    Failed { error: Error, stop: bool },
}

impl Delivery {
    pub(super) async fn deliver(self: Arc<Self>, chunk: Chunk) -> Delivered {
        let Chunk { start, writes } = chunk;
        let mut parts = Vec::new();
        let mut stopped: Option<Error> = None;
        // The keys of a chunk differ, so the order of its parts does not matter.
        let mut unsent = vec![UnsentPart {
            indexes: 0..writes.len(),
            unknown: false,
        }];
        while let Some(UnsentPart { indexes, unknown }) = unsent.pop() {
            let part = &writes[indexes.clone()];
            let result = match &stopped {
                Some(reason) if unknown => PartResult::Failed {
                    error: reason.clone().with_outcome(Outcome::Unknown),
                    stop: true,
                },
                Some(_) => continue,
                None if self.limits.allow(part) => self.write(part, unknown).await,
                None => PartResult::Split { unknown },
            };
            let (result, stop) = match result {
                PartResult::Split { unknown } => {
                    let middle = indexes.start + indexes.len() / 2;
                    for indexes in [middle..indexes.end, indexes.start..middle] {
                        unsent.push(UnsentPart { indexes, unknown });
                    }
                    continue;
                }
                PartResult::Written(revision) => (Ok(revision), false),
                PartResult::Failed { error, stop } => (Err(error), stop),
            };
            if let Err(error) = &result
                && stop
            {
                stopped.get_or_insert_with(|| error.clone());
            }
            let (Some(first), Some(last)) = (part.first(), part.last()) else {
                continue;
            };
            parts.push(DeliveredPart {
                positions: start + indexes.start as u64..start + indexes.end as u64,
                first_key: first.key().clone(),
                last_key: last.key().clone(),
                bytes: part.iter().map(BulkWrite::payload).sum::<usize>() as u64,
                result,
                stop,
            });
        }
        Delivered { writes, parts }
    }

    /// Writes a part of a chunk, with attempts until the bulk gives up. `unknown` is whether an earlier attempt may
    /// have been applied.
    async fn write(&self, writes: &[BulkWrite], mut unknown: bool) -> PartResult {
        let give_up = deadline_in(self.give_up_after);
        let mut backoff = RETRY_BACKOFF.start();
        let mut unmet_conditions = 0;
        loop {
            let (known, attempted) = match self.known_revision(writes).await {
                Ok(known) => (known, self.attempt(writes, known).await),
                // This attempt was not sent.
                Err(error) => (0, Err(error.with_outcome(Outcome::NotSent))),
            };
            let error = match attempted {
                Ok(Some(revision)) => return PartResult::Written(revision),
                // Another writer, or an earlier attempt, changed the key of the condition; the known revision is newer now.
                Ok(None) => {
                    unmet_conditions += 1;
                    if unmet_conditions > IMMEDIATE_RETRIES && !wait(&mut backoff, give_up).await {
                        let error = or_unknown(condition_never_met(), unknown);
                        return PartResult::Failed { error, stop: false };
                    }
                    continue;
                }
                Err(error) => error,
            };
            unknown |= error.outcome() == Outcome::Unknown;
            let reaction =
                reaction_to(error.kind(), error.outcome(), writes.len(), self.on_unknown);
            let error = or_unknown(error, unknown);
            match reaction {
                FailureReaction::SplitOps => {
                    self.limits.refused_ops(writes.len());
                    return PartResult::Split { unknown };
                }
                FailureReaction::SplitBytes => {
                    self.limits.refused_bytes(encoded_size(writes));
                    return PartResult::Split { unknown };
                }
                FailureReaction::Isolate => return PartResult::Split { unknown },
                FailureReaction::Fail => return PartResult::Failed { error, stop: false },
                FailureReaction::Stop => return PartResult::Failed { error, stop: true },
                FailureReaction::ReadBack => {
                    if let Ok(Some(revision)) = self.read_back(writes, known).await {
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

    /// Sends the transaction once, with the [condition](self) for this known revision. Returns its revision, or `None`
    /// if the condition did not hold.
    async fn attempt(&self, writes: &[BulkWrite], known: i64) -> Result<Option<i64>> {
        let unchanged = |write: &BulkWrite| Compare::mod_revision(write.key()).lt(known + 1);
        let conditions: Vec<_> = match first_put(writes) {
            Some((_, put)) => vec![unchanged(put)],
            None => writes.iter().map(unchanged).collect(),
        };
        let operations: Vec<_> = writes.iter().map(BulkWrite::operation).collect();
        let mut txn = self.client.txn().when(conditions).then(operations);
        if let Some(timeout) = self.timeout {
            txn = txn.timeout(timeout);
        }
        let response = txn.await?;
        self.check_cluster(&response.header, Outcome::Unknown)?;
        let revision = response.header.revision;
        if revision < known {
            // Restored from an older backup. With the larger revision, the condition would always hold.
            self.revision.fetch_min(revision, Relaxed);
        } else {
            self.revision.fetch_max(revision, Relaxed);
        }
        Ok(response.succeeded.then_some(revision))
    }

    /// Fails if a response comes from another cluster than the first one. `outcome` is that of the request.
    fn check_cluster(&self, header: &ResponseHeader, outcome: Outcome) -> Result<()> {
        let first = self
            .cluster
            .compare_exchange(0, header.cluster_id, Relaxed, Relaxed);
        match first {
            Err(first) if first != header.cluster_id => Err(Error::new(
                ErrorKind::ClusterChanged,
                outcome,
                "the client changed to another cluster during the bulk, so each cluster has a part of the writes",
            )),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn known_revision(&self, writes: &[BulkWrite]) -> Result<i64> {
        let known = self.revision.load(Relaxed);
        let Some(first) = writes.first().filter(|_| known == 0) else {
            return Ok(known);
        };
        let mut read = self.client.get(first.key()).count_only();
        if let Some(timeout) = self.timeout {
            read = read.timeout(timeout);
        }
        let header = read.await?.header;
        self.check_cluster(&header, Outcome::NotSent)?;
        let revision = header.revision;
        Ok(self.revision.fetch_max(revision, Relaxed).max(revision))
    }

    /// Reads the keys after an attempt with an unknown outcome, whose condition had this known revision. Returns the
    /// revision of the read if all of them have the state that the writes lead to, and the attempt cannot be applied
    /// any more.
    async fn read_back(&self, writes: &[BulkWrite], known: i64) -> Result<Option<i64>> {
        let keys = writes.iter().map(BulkWrite::key);
        let mut read = get_many(keys).on(&self.client);
        if let Some(timeout) = self.timeout {
            read = read.timeout(timeout);
        }
        let found = read.await?;
        let mut all = writes.iter().zip(&found.kvs);
        let written = all.all(|(write, kv)| shows(write, kv.as_ref()));
        // Changed after the known revision, by this attempt or by another writer: the condition is not met any more.
        let changed = first_put(writes).is_none_or(|(index, _)| {
            let kv = found.kvs.get(index).and_then(Option::as_ref);
            kv.is_some_and(|kv| kv.mod_revision > known)
        });
        Ok((written && changed).then_some(found.revision))
    }
}

/// Returns the first put and its index; `None` if all writes are deletes.
fn first_put(writes: &[BulkWrite]) -> Option<(usize, &BulkWrite)> {
    let mut all = writes.iter().enumerate();
    all.find(|(_, write)| write.value().is_some())
}

/// Returns the error with an unknown outcome if an earlier attempt may have been applied.
fn or_unknown(error: Error, unknown: bool) -> Error {
    if unknown {
        error.with_outcome(Outcome::Unknown)
    } else {
        error
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
        ErrorKind::Unavailable,
        Outcome::Rejected,
        "other writers changed its keys before every attempt",
    )
}
