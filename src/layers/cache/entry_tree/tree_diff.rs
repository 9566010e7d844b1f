//! The difference between two trees.

use std::{cmp::Ordering, sync::Arc};

use super::{CacheEntry, EntryTree, Node};

/// An iterator over the keys that differ between two trees, in order: the entry before, and the entry after. Nodes that
/// both trees share are skipped.
#[derive(Clone)]
pub(in super::super) struct TreeDiff {
    before: TreeCursor,
    after: TreeCursor,
}

impl TreeDiff {
    pub(in super::super) fn new(before: &EntryTree, after: &EntryTree) -> Self {
        let is_same = before.is_same(after);
        let cursor = |tree: &EntryTree| TreeCursor {
            path: if is_same {
                Vec::new()
            } else {
                vec![(tree.root.clone(), 0)]
            },
        };
        Self {
            before: cursor(before),
            after: cursor(after),
        }
    }
}

impl Iterator for TreeDiff {
    type Item = (Option<CacheEntry>, Option<CacheEntry>);

    fn next(&mut self) -> Option<Self::Item> {
        use TreePlace::{End, Entry, Subtree};
        loop {
            match (self.before.place(), self.after.place()) {
                (End, End) => return None,
                (Subtree(before), Subtree(after)) => {
                    if Arc::ptr_eq(before, after) {
                        self.before.skip();
                        self.after.skip();
                        continue;
                    }
                    // Both sides reach the same level, on which they can share nodes.
                    let order = before.height().cmp(&after.height());
                    if order != Ordering::Less {
                        self.before.descend();
                    }
                    if order != Ordering::Greater {
                        self.after.descend();
                    }
                }
                (Subtree(_), Entry(_) | End) => self.before.descend(),
                (Entry(_) | End, Subtree(_)) => self.after.descend(),
                (Entry(before), Entry(after)) => {
                    let order = if before.is_same(after) {
                        Ordering::Equal
                    } else {
                        before.key().cmp(after.key())
                    };
                    let differs = order != Ordering::Equal || before != after;
                    let pair = (
                        (order != Ordering::Greater).then(|| before.clone()),
                        (order != Ordering::Less).then(|| after.clone()),
                    );
                    if pair.0.is_some() {
                        self.before.skip();
                    }
                    if pair.1.is_some() {
                        self.after.skip();
                    }
                    if differs {
                        return Some(pair);
                    }
                }
                (Entry(before), End) => {
                    let before = before.clone();
                    self.before.skip();
                    return Some((Some(before), None));
                }
                (End, Entry(after)) => {
                    let after = after.clone();
                    self.after.skip();
                    return Some((None, Some(after)));
                }
            }
        }
    }
}

/// A place in a tree: before an entry, or before all entries of a subtree.
#[derive(Clone)]
struct TreeCursor {
    path: Vec<(Arc<Node>, usize)>,
}

enum TreePlace<'a> {
    Subtree(&'a Arc<Node>),
    Entry(&'a CacheEntry),
    End,
}

impl TreeCursor {
    fn place(&mut self) -> TreePlace<'_> {
        while let Some((node, index)) = self.path.last()
            && *index >= node.len()
        {
            self.path.pop();
        }
        let place = self.path.last().and_then(|(node, index)| match &**node {
            Node::Leaf(leaf) => leaf.entry(*index).map(TreePlace::Entry),
            Node::Branch(branch) => branch.child(*index).map(TreePlace::Subtree),
        });
        place.unwrap_or(TreePlace::End)
    }

    fn skip(&mut self) {
        if let Some((_, index)) = self.path.last_mut() {
            *index += 1;
        }
    }

    /// Moves to the first item of the subtree.
    fn descend(&mut self) {
        let Some((node, index)) = self.path.last_mut() else {
            return;
        };
        if let Node::Branch(branch) = &**node
            && let Some(child) = branch.child(*index).cloned()
        {
            *index += 1;
            self.path.push((child, 0));
        }
    }
}
