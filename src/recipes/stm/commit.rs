//! The end of an attempt: its writes, on the condition that its reads are still true.

use bytes::Bytes;

use super::{
    Isolation,
    read_set::Known,
    transaction::{AttemptSets, Attempted},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::Compare,
    layers::exactly_once::Fence,
};

/// Operations of a transaction that applying it exactly once takes: a level of nesting, and the marker.
const EXACTLY_ONCE_OPS: usize = 2;

/// Sends the writes of an attempt. Returns `false` after a conflict.
pub(super) async fn commit(
    attempt: &Attempted,
    sets: AttemptSets,
    max_ops: usize,
    fences: &[StmFence],
) -> Result<bool> {
    let conditions = conditions(attempt.isolation, &sets);
    // A snapshot is consistent, whatever has changed since.
    let needs_check = !conditions.is_empty() && !attempt.isolation.has_snapshot();
    if sets.writes.is_empty() && !needs_check {
        return Ok(true);
    }
    let timeout = attempt.remaining()?;
    if sets.writes.is_empty() {
        check_size(conditions.len(), 0, max_ops)?;
        let unchanged = attempt.client.txn().when(conditions);
        return Ok(unchanged.timeout(timeout).await?.succeeded);
    }
    let fence_ops = fences.iter().map(|fence| fence.conditions.len()).sum();
    let own_ops = max_ops
        .saturating_sub(EXACTLY_ONCE_OPS)
        .saturating_sub(fence_ops);
    check_size(conditions.len(), sets.writes.len(), own_ops)?;
    let txn = attempt.client.txn().when(conditions);
    let mut write = txn.then(sets.writes.into_ops()).exactly_once();
    for fence in fences {
        write = write.fenced_by(fence);
    }
    Ok(write.timeout(timeout).await?.succeeded)
}

/// An ownership without which nothing is written.
#[derive(Debug, Clone)]
pub(super) struct StmFence {
    conditions: Vec<Compare>,
    key: Bytes,
}

impl StmFence {
    pub(super) fn new(fence: &impl Fence) -> Self {
        Self {
            conditions: fence.fence_conditions(),
            key: fence.fence_key(),
        }
    }
}

impl Fence for StmFence {
    fn fence_conditions(&self) -> Vec<Compare> {
        self.conditions.clone()
    }

    fn fence_key(&self) -> Bytes {
        self.key.clone()
    }
}

/// Returns the conditions of a commit.
fn conditions(isolation: Isolation, sets: &AttemptSets) -> Vec<Compare> {
    let mut conditions = sets.reads.unchanged();
    if isolation == Isolation::SerializableSnapshot && sets.first_revision != 0 {
        // The conditions of keys that were read are stricter.
        let unread = |key: &Bytes| sets.reads.get(key) == Known::Unread;
        let writes = sets.writes.not_put_after(sets.first_revision, unread);
        conditions.extend(writes);
    }
    conditions
}

/// Fails if etcd would refuse the commit because of its size.
fn check_size(conditions: usize, writes: usize, max_ops: usize) -> Result<()> {
    if conditions.max(writes) <= max_ops {
        return Ok(());
    }
    let reason = format!(
        "the transaction has {writes} writes and {conditions} conditions, and may have {max_ops} of each; \
         raise `Stm::max_ops` if the servers allow more"
    );
    Err(Error::new(ErrorKind::TooManyOps, Outcome::NotSent, reason))
}
