//! Decides which changes of the source form one transaction of the destination.
//!
//! A transaction has whole revisions of the source, as many as fit. It ends before a revision that changes a key of the
//! transaction again, because etcd rejects a transaction that writes a key twice; with `merge`, only the last change of
//! a key is kept instead. A revision that is too large for one transaction is split.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::mirror_checkpoint::{MirrorPosition, PartialRevision};
use crate::{
    kv::{Op, Put, delete, put, txn},
    layers::get_many::DEFAULT_MAX_TXN_OPS,
};

/// Changes per transaction, if the revisions of the source are smaller.
const BATCH_OPS: usize = 1000;
/// Size of a transaction, if the revisions of the source are smaller.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes that a change adds to a transaction besides key and value, at most.
const OVERHEAD: usize = 32;

/// A put or a delete of a key of the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MirroredChange {
    pub(super) key: Bytes,
    /// `None` for a delete.
    pub(super) value: Option<Bytes>,
}

impl MirroredChange {
    pub(super) fn size(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + OVERHEAD
    }

    fn operation(&self) -> Op {
        match &self.value {
            Some(value) => put(self.key.clone(), value.clone()).into(),
            None => delete(self.key.clone()).into(),
        }
    }
}

/// Limits of the destination. They only shrink, when it refuses a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct DestinationLimits {
    /// Operations that the server allows per list of a transaction (`--max-txn-ops`).
    txn_ops: usize,
    /// Size of a transaction.
    bytes: usize,
}

impl Default for DestinationLimits {
    fn default() -> Self {
        Self {
            txn_ops: DEFAULT_MAX_TXN_OPS,
            bytes: usize::MAX,
        }
    }
}

impl DestinationLimits {
    /// Returns the number of changes that fit into one transaction with nested ones, besides the checkpoint. etcd
    /// subtracts the number of operations of a transaction from the limit of those nested in it.
    fn max_changes(&self) -> usize {
        let (groups, per_group) = self.nesting();
        (groups * per_group).max(self.txn_ops.saturating_sub(1))
    }

    /// Returns the number of nested transactions, and the number of operations of each, that allow the most changes.
    fn nesting(&self) -> (usize, usize) {
        let groups = self.txn_ops.saturating_sub(1) / 2;
        (groups, self.txn_ops.saturating_sub(groups + 1))
    }

    /// Returns how many of the first changes fit into one transaction; at least one.
    pub(super) fn fitting(&self, changes: &[MirroredChange]) -> usize {
        let mut bytes = 0_usize;
        let within_bytes = changes.iter().take_while(|change| {
            bytes = bytes.saturating_add(change.size());
            bytes <= self.bytes
        });
        within_bytes.count().min(self.max_changes()).max(1)
    }

    /// Returns whether a transaction of several revisions may have this many changes of this size.
    pub(super) fn allow_batch(&self, changes: usize, bytes: usize) -> bool {
        changes <= self.max_changes().min(BATCH_OPS) && bytes <= self.bytes.min(BATCH_BYTES)
    }

    /// Remembers that the server refused the number of operations. Returns `false` if it allows none.
    pub(super) fn refused_ops(&mut self) -> bool {
        self.txn_ops /= 2;
        self.txn_ops > 1
    }

    /// Remembers that the server refused the size of these changes. Returns `false` if they cannot be split.
    pub(super) fn refused_bytes(&mut self, changes: &[MirroredChange]) -> bool {
        let size: usize = changes.iter().map(MirroredChange::size).sum();
        self.bytes = self.bytes.min(size / 2);
        changes.len() > 1
    }

    /// Returns the operations of a transaction: the checkpoint and the changes, in nested transactions if necessary.
    pub(super) fn operations(&self, checkpoint: Put, changes: &[MirroredChange]) -> Vec<Op> {
        let mut operations = vec![checkpoint.into()];
        let changes: Vec<Op> = changes.iter().map(MirroredChange::operation).collect();
        if changes.len() < self.txn_ops {
            operations.extend(changes);
        } else {
            let (_, per_group) = self.nesting();
            let groups = changes.chunks(per_group.max(1));
            operations.extend(groups.map(|group| Op::from(txn().then(group.to_vec()))));
        }
        operations
    }
}

/// All changes of one revision of the source.
#[derive(Debug)]
struct PendingRevision {
    revision: i64,
    changes: Vec<MirroredChange>,
    /// Number of changes that are applied already.
    done: usize,
}

/// The changes of the source that are not applied yet.
#[derive(Debug)]
pub(super) struct ChangeQueue {
    /// The destination has all changes up to this revision.
    applied: i64,
    /// The revision that is applied in part, until it arrives.
    partial: Option<PartialRevision>,
    pending: VecDeque<PendingRevision>,
    changes: usize,
    bytes: usize,
    merge: bool,
}

/// The next transaction.
#[derive(Debug)]
pub(super) struct PlannedTransaction {
    pub(super) changes: Vec<MirroredChange>,
    /// The position after it.
    pub(super) position: MirrorPosition,
}

impl ChangeQueue {
    pub(super) fn new(applied: i64, partial: Option<PartialRevision>, merge: bool) -> Self {
        Self {
            applied,
            partial,
            pending: VecDeque::new(),
            changes: 0,
            bytes: 0,
            merge,
        }
    }

    /// Adds all changes of the next revision.
    pub(super) fn push(&mut self, revision: i64, changes: Vec<MirroredChange>) {
        let mut last = LastChanges::default();
        last.extend(changes);
        let changes = last.changes;
        let partial = self.partial.take();
        let done = partial
            .filter(|partial| partial.revision == revision)
            .map_or(0, |partial| partial.changes.min(changes.len()));
        if changes.is_empty() {
            return;
        }
        self.changes += changes.len() - done;
        self.bytes += size_of(&changes[done..]);
        self.pending.push_back(PendingRevision {
            revision,
            changes,
            done,
        });
    }

    /// Returns whether there are enough changes for a transaction.
    pub(super) fn is_full(&self, limits: &DestinationLimits) -> bool {
        !limits.allow_batch(self.changes + 1, self.bytes + 1)
    }

    /// Returns the next transaction; `None` if there are no changes.
    pub(super) fn plan(&self, limits: &DestinationLimits) -> Option<PlannedTransaction> {
        let first = self.pending.front()?;
        let rest = &first.changes[first.done..];
        let fitting = limits.fitting(rest);
        if fitting < rest.len() {
            let partial = PartialRevision {
                revision: first.revision,
                changes: first.done + fitting,
            };
            return Some(PlannedTransaction {
                changes: rest[..fitting].to_vec(),
                position: MirrorPosition::Applied {
                    revision: self.applied,
                    partial: Some(partial),
                },
            });
        }
        let mut last = LastChanges::default();
        last.extend(rest.iter().cloned());
        let (mut revision, mut bytes) = (first.revision, size_of(rest));
        for next in self.pending.iter().skip(1) {
            bytes += size_of(&next.changes);
            let is_separate = !self.merge && last.has_any(&next.changes);
            if is_separate || !limits.allow_batch(last.changes.len() + next.changes.len(), bytes) {
                break;
            }
            last.extend(next.changes.iter().cloned());
            revision = next.revision;
        }
        Some(PlannedTransaction {
            changes: last.changes,
            position: MirrorPosition::Applied {
                revision,
                partial: None,
            },
        })
    }

    /// Removes the changes up to the position, which are applied.
    pub(super) fn applied(&mut self, position: &MirrorPosition) {
        let MirrorPosition::Applied { revision, partial } = position else {
            return;
        };
        self.applied = *revision;
        while let Some(first) = self.pending.front()
            && first.revision <= *revision
        {
            self.changes -= first.changes.len() - first.done;
            self.bytes -= size_of(&first.changes[first.done..]);
            self.pending.pop_front();
        }
        if let (Some(partial), Some(first)) = (partial, self.pending.front_mut())
            && partial.revision == first.revision
        {
            self.changes -= partial.changes - first.done;
            self.bytes -= size_of(&first.changes[first.done..partial.changes]);
            first.done = partial.changes;
        }
    }
}

fn size_of(changes: &[MirroredChange]) -> usize {
    changes.iter().map(MirroredChange::size).sum()
}

/// Changes with one change per key, the last one.
#[derive(Debug, Default)]
struct LastChanges {
    changes: Vec<MirroredChange>,
    indexes: HashMap<Bytes, usize>,
}

impl LastChanges {
    fn extend(&mut self, changes: impl IntoIterator<Item = MirroredChange>) {
        for change in changes {
            if let Some(index) = self.indexes.get(&change.key) {
                self.changes[*index] = change;
            } else {
                self.indexes.insert(change.key.clone(), self.changes.len());
                self.changes.push(change);
            }
        }
    }

    fn has_any(&self, changes: &[MirroredChange]) -> bool {
        changes
            .iter()
            .any(|change| self.indexes.contains_key(&change.key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change(key: u8, value: u32) -> MirroredChange {
        MirroredChange {
            key: vec![key].into(),
            value: (!value.is_multiple_of(5)).then(|| value.to_string().into()),
        }
    }

    /// Limits of a server with this `--max-txn-ops`.
    fn limits(txn_ops: usize) -> DestinationLimits {
        DestinationLimits {
            txn_ops,
            bytes: usize::MAX,
        }
    }

    fn applied(revision: i64) -> MirrorPosition {
        MirrorPosition::Applied {
            revision,
            partial: None,
        }
    }

    /// Applies etcd's rule: a transaction has at most `limit` operations, and each nested one at most `limit` minus
    /// that number. Returns the number of keys that it changes.
    fn check_operations(ops: &[Op], limit: usize) -> usize {
        assert!(
            ops.len() <= limit,
            "{} operations, allowed are {limit}",
            ops.len()
        );
        let nested = |op: &Op| {
            // Nested transactions are opaque; their debug form lists the operations.
            format!("{op:?}").matches("RequestPut").count().max(1)
        };
        ops.iter().map(nested).sum()
    }

    #[test]
    fn many_changes_fit_into_nested_transactions() {
        assert_eq!(limits(128).max_changes(), 63 * 64);
        assert_eq!(limits(2).max_changes(), 1);
        for (txn_ops, changes) in [
            (128, 127),
            (128, 128),
            (128, 4032),
            (10, 20),
            (4, 3),
            (2, 1),
        ] {
            let changes: Vec<_> = (0..changes).map(|_| change(1, 1)).collect();
            assert_eq!(limits(txn_ops).fitting(&changes), changes.len());
            let ops = limits(txn_ops).operations(put("checkpoint", "v"), &changes);
            assert_eq!(check_operations(&ops, txn_ops), changes.len() + 1);
        }
    }

    #[test]
    fn refused_transactions_shrink_the_limits() {
        let mut limits = DestinationLimits::default();
        for ops in [64, 32, 16, 8, 4, 2] {
            assert!(limits.refused_ops());
            assert_eq!(limits.txn_ops, ops);
        }
        assert!(!limits.refused_ops());
        let mut limits = DestinationLimits::default();
        let large = [change(1, 1), change(2, 2)];
        assert!(limits.refused_bytes(&large));
        assert_eq!(limits.fitting(&large), 1);
        assert!(!limits.refused_bytes(&large[..1]));
    }

    #[test]
    fn revisions_are_batched_until_a_key_repeats() {
        let mut queue = ChangeQueue::new(1, None, false);
        queue.push(5, vec![change(1, 1)]);
        queue.push(6, vec![change(2, 2), change(3, 3)]);
        queue.push(9, vec![change(1, 4)]);
        let plan = queue.plan(&limits(128)).unwrap();
        assert_eq!((plan.changes.len(), &plan.position), (3, &applied(6)));
        queue.applied(&plan.position);
        let plan = queue.plan(&limits(128)).unwrap();
        assert_eq!(
            (plan.changes, plan.position),
            (vec![change(1, 4)], applied(9))
        );
    }

    #[test]
    fn merged_updates_keep_the_last_value() {
        let mut queue = ChangeQueue::new(1, None, true);
        for revision in 2..8 {
            queue.push(revision, vec![change(1, u32::try_from(revision).unwrap())]);
        }
        let plan = queue.plan(&limits(128)).unwrap();
        assert_eq!(
            (plan.changes, plan.position),
            (vec![change(1, 7)], applied(7))
        );
    }

    #[test]
    fn revision_of_own_checkpoint_only_is_skipped() {
        let mut queue = ChangeQueue::new(1, None, false);
        queue.push(2, Vec::new());
        assert!(queue.plan(&limits(128)).is_none());
    }

    proptest! {
        /// The mirror crashes at random, also between the parts of a revision, and continues at its checkpoint.
        #[test]
        fn every_change_is_applied_once_in_order_and_whole(
            revisions in proptest::collection::vec(
                proptest::collection::btree_map(0..8_u8, any::<u32>(), 1..8), 1..30),
            txn_ops in 2..9_usize,
            seed in any::<u64>(),
        ) {
            let limits = limits(txn_ops);
            let source: Vec<Vec<MirroredChange>> = revisions
                .into_iter()
                .map(|changes| changes.into_iter().map(|(key, value)| change(key, value)).collect())
                .collect();
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut position = applied(0);
            let mut written: Vec<Vec<MirroredChange>> = Vec::new();
            while position.revision() < i64::try_from(source.len()).unwrap() {
                let MirrorPosition::Applied { revision, partial } = position.clone() else { unreachable!() };
                let mut queue = ChangeQueue::new(revision, partial, false);
                let mut next = usize::try_from(revision).unwrap();
                loop {
                    let choice = rng.u32(..);
                    if choice.is_multiple_of(7) {
                        break;
                    }
                    if choice.is_multiple_of(2) && next < source.len() {
                        next += 1;
                        queue.push(i64::try_from(next).unwrap(), source[next - 1].clone());
                    }
                    if choice.is_multiple_of(3) && let Some(plan) = queue.plan(&limits) {
                        prop_assert!(plan.changes.len() <= limits.max_changes());
                        queue.applied(&plan.position);
                        position = plan.position;
                        written.push(plan.changes);
                    }
                }
                prop_assert!(queue.pending.iter().map(|pending| pending.changes.len() - pending.done).sum::<usize>()
                    == queue.changes);
            }
            let of_key = |all: &[Vec<MirroredChange>], key: u8| -> Vec<MirroredChange> {
                all.iter().flatten().filter(|change| change.key[0] == key).cloned().collect()
            };
            for key in 0..8 {
                prop_assert_eq!(of_key(&written, key), of_key(&source, key));
            }
            for transaction in &written {
                let keys: std::collections::HashSet<_> = transaction.iter().map(|change| &change.key).collect();
                prop_assert_eq!(keys.len(), transaction.len());
            }
        }
    }
}
