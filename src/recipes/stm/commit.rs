//! The end of an attempt: its writes, on the condition that its reads are still true.

use super::{
    Isolation,
    transaction::{AttemptSets, Attempted},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, Txn},
};

/// Sends the writes of an attempt. Returns `false` after a conflict.
pub(super) async fn commit(attempt: &Attempted, sets: AttemptSets, max_ops: usize) -> Result<bool> {
    let conditions = conditions(attempt.isolation, &sets);
    // A snapshot is consistent, whatever has changed since.
    let needs_check = !conditions.is_empty() && !attempt.isolation.has_snapshot();
    if sets.writes.is_empty() && !needs_check {
        return Ok(true);
    }
    check_size(conditions.len(), sets.writes.len(), max_ops)?;
    let txn = attempt.client.txn().when(conditions);
    let txn = txn.timeout(attempt.remaining()?);
    if sets.writes.is_empty() {
        return Ok(txn.await?.succeeded);
    }
    apply_once(txn.then(sets.writes.into_ops())).await
}

/// Sends a transaction with writes. Returns whether its conditions held.
async fn apply_once(txn: Txn<Client>) -> Result<bool> {
    Ok(txn.await?.succeeded)
}

/// Returns the conditions of a commit.
fn conditions(isolation: Isolation, sets: &AttemptSets) -> Vec<Compare> {
    let mut conditions = sets.reads.unchanged();
    if isolation == Isolation::SerializableSnapshot && sets.first_revision != 0 {
        conditions.extend(sets.writes.not_put_after(sets.first_revision));
    }
    conditions
}

/// Fails if etcd would refuse the commit because of its size.
fn check_size(conditions: usize, writes: usize, max_ops: usize) -> Result<()> {
    if conditions.max(writes) <= max_ops {
        return Ok(());
    }
    let reason = format!(
        "the transaction has {writes} writes and {conditions} conditions, and etcd allows {max_ops} of each \
         (`Stm::max_ops`)"
    );
    Err(Error::new(ErrorKind::TooManyOps, Outcome::NotSent, reason))
}
