//! The entries between two keys, in order.

use std::{ops::Bound, sync::Arc};

use super::{CacheEntry, EntryTree, Node};

/// An iterator over the entries of a tree. It keeps the tree as it was.
#[derive(Clone)]
pub(in super::super) struct TreeRange {
    /// The nodes on the way to the next entry, each with the index of its next item.
    path: Vec<(Arc<Node>, usize)>,
    end: Bound<Box<[u8]>>,
}

impl EntryTree {
    /// Returns the entries from a key on.
    pub(in super::super) fn range(&self, start: Bound<&[u8]>, end: Bound<Box<[u8]>>) -> TreeRange {
        let mut path = Vec::new();
        let mut node = &self.root;
        loop {
            let index = match (&**node, start) {
                (_, Bound::Unbounded) => 0,
                (Node::Branch(branch), Bound::Included(key) | Bound::Excluded(key)) => {
                    branch.index_of(key)
                }
                (Node::Leaf(leaf), Bound::Included(key)) => {
                    leaf.position(key).unwrap_or_else(|index| index)
                }
                (Node::Leaf(leaf), Bound::Excluded(key)) => leaf
                    .position(key)
                    .map_or_else(|index| index, |found| found + 1),
            };
            match &**node {
                Node::Branch(branch) if let Some(child) = branch.child(index) => {
                    path.push((node.clone(), index + 1));
                    node = child;
                }
                _ => {
                    path.push((node.clone(), index));
                    return TreeRange { path, end };
                }
            }
        }
    }
}

impl Iterator for TreeRange {
    type Item = CacheEntry;

    fn next(&mut self) -> Option<CacheEntry> {
        loop {
            let (node, index) = self.path.last_mut()?;
            let below = match &**node {
                Node::Leaf(leaf) => match leaf.entry(*index) {
                    Some(entry) => {
                        let is_inside = match &self.end {
                            Bound::Unbounded => true,
                            Bound::Included(end) => entry.key() <= &end[..],
                            Bound::Excluded(end) => entry.key() < &end[..],
                        };
                        let entry = is_inside.then(|| entry.clone());
                        *index += 1;
                        if entry.is_none() {
                            self.path.clear();
                        }
                        return entry;
                    }
                    None => None,
                },
                Node::Branch(branch) => branch.child(*index).cloned(),
            };
            *index += 1;
            match below {
                Some(child) => self.path.push((child, 0)),
                None => drop(self.path.pop()),
            }
        }
    }
}
