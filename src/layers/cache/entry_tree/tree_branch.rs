//! A node of nodes.

use std::{cmp::Ordering, sync::Arc};

use super::{
    Node, Split,
    key_heads::{KeyHeads, compare_with_prefix},
    node_slots::NodeSlots,
};

/// As many as fit into the size of a leaf.
const CHILDREN: usize = 48;
/// Longest prefix that is stored in the node.
const INLINE_PREFIX: usize = 24;
/// A branch with fewer children is merged with its neighbour if both fit well into one.
const SMALL_BRANCH: usize = CHILDREN / 4;
const MERGED_BRANCH: usize = CHILDREN * 3 / 4;

#[derive(Clone)]
pub(super) struct Branch {
    height: u8,
    bounds: ChildBounds,
    children: NodeSlots<Arc<Node>, CHILDREN>,
}

/// The lowest key that each child but the first can have.
#[derive(Clone, Default)]
struct ChildBounds {
    heads: KeyHeads<CHILDREN>,
    prefix: InlinePrefix,
    /// Shared by copies of the branch that differ by their children only.
    keys: Arc<[Box<[u8]>]>,
}

/// The prefix of a node's bounds, without an allocation of its own unless it is long.
#[derive(Clone, Default)]
struct InlinePrefix {
    length: usize,
    bytes: [u8; INLINE_PREFIX],
}

impl InlinePrefix {
    fn new(prefix: &[u8]) -> Self {
        let mut new = Self {
            length: prefix.len(),
            bytes: [0; INLINE_PREFIX],
        };
        for (byte, source) in new.bytes.iter_mut().zip(prefix) {
            *byte = *source;
        }
        new
    }

    /// Returns the prefix. `keys` start with it.
    fn bytes<'a>(&'a self, keys: &'a [Box<[u8]>]) -> &'a [u8] {
        match self.bytes.get(..self.length) {
            Some(prefix) => prefix,
            None => keys.first().map_or(&[], |key| &key[..self.length]),
        }
    }
}

impl ChildBounds {
    fn new(keys: Vec<Box<[u8]>>) -> Self {
        let heads = KeyHeads::of(keys.iter().map(|key| &key[..]));
        let first = keys.first().map_or(&[][..], |key| &key[..]);
        Self {
            prefix: InlinePrefix::new(&first[..heads.skip()]),
            heads,
            keys: keys.into(),
        }
    }

    /// Returns the number of bounds that are not greater than the key.
    fn not_greater(&self, key: &[u8]) -> usize {
        match compare_with_prefix(key, self.prefix.bytes(&self.keys)) {
            Ordering::Less => 0,
            Ordering::Greater => self.keys.len(),
            Ordering::Equal => {
                let same = self.heads.candidates(key, self.keys.len());
                let bounds = &self.keys[same.clone()];
                same.start + bounds.partition_point(|bound| &bound[..] <= key)
            }
        }
    }
}

impl Branch {
    /// Creates the parent of a node that was split.
    pub(super) fn new(left: Arc<Node>, split: Split) -> Self {
        let height = left.height() + 1;
        let mut children = NodeSlots::default();
        children.insert(0, left);
        children.insert(1, split.right);
        Self {
            height,
            bounds: ChildBounds::new(vec![split.bound]),
            children,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.children.len()
    }

    pub(super) fn height(&self) -> u8 {
        self.height
    }

    pub(super) fn child(&self, index: usize) -> Option<&Arc<Node>> {
        self.children.get(index)
    }

    pub(super) fn child_mut(&mut self, index: usize) -> Option<&mut Arc<Node>> {
        self.children.get_mut(index)
    }

    /// Returns the child if there is exactly one.
    pub(super) fn only_child(&self) -> Option<&Arc<Node>> {
        self.children.get(0).filter(|_| self.len() == 1)
    }

    /// Returns the index of the child that has the key, if any child has.
    pub(super) fn index_of(&self, key: &[u8]) -> usize {
        self.bounds.not_greater(key)
    }

    pub(super) fn child_of(&self, key: &[u8]) -> Option<&Node> {
        self.child(self.index_of(key)).map(|child| &**child)
    }

    /// Adds the second half of a child that was split. Splits this branch as well if it is full.
    pub(super) fn insert(&mut self, index: usize, split: Split) -> Option<Split> {
        if !self.children.is_full() {
            self.insert_at(index + 1, split);
            return None;
        }
        let middle = if index + 1 == CHILDREN {
            // Ascending keys fill each branch completely, except for the two children that a bound is between.
            CHILDREN - 1
        } else {
            CHILDREN / 2
        };
        let mut left_keys = self.bounds.keys.to_vec();
        let right_keys = left_keys.split_off(middle);
        // The bound between the halves belongs to the parent.
        let bound = left_keys.pop()?;
        let mut right = Self {
            height: self.height,
            bounds: ChildBounds::new(right_keys),
            children: self.children.split_off(middle),
        };
        self.bounds = ChildBounds::new(left_keys);
        if index < middle {
            self.insert_at(index + 1, split);
        } else {
            right.insert_at(index + 1 - middle, split);
        }
        let right = Arc::new(Node::Branch(right));
        Some(Split { bound, right })
    }

    fn insert_at(&mut self, index: usize, split: Split) {
        let mut keys = self.bounds.keys.to_vec();
        keys.insert(index - 1, split.bound);
        self.bounds = ChildBounds::new(keys);
        self.children.insert(index, split.right);
    }

    /// Removes a child that is empty, or merges it with a neighbour if both are small.
    pub(super) fn merge_if_small(&mut self, index: usize) {
        let Some(child) = self.child(index) else {
            return;
        };
        let is_small = match &**child {
            Node::Leaf(leaf) => leaf.is_small(),
            Node::Branch(branch) => branch.len() < SMALL_BRANCH,
        };
        if !is_small {
            return;
        }
        if child.len() == 0 && self.len() > 1 {
            self.children.remove(index);
            self.remove_bound(index.saturating_sub(1));
        } else if !self.merge_with_next(index) && index > 0 {
            self.merge_with_next(index - 1);
        }
    }

    fn merge_with_next(&mut self, index: usize) -> bool {
        let Some(next) = self.child(index + 1).cloned() else {
            return false;
        };
        let Some(bound) = self.bounds.keys.get(index).cloned() else {
            return false;
        };
        let Some(child) = self.child_mut(index) else {
            return false;
        };
        let fits = match &*next {
            Node::Leaf(_) => child.len() + next.len() <= MERGED_BRANCH,
            Node::Branch(next) => child.len() + next.len() <= MERGED_BRANCH,
        };
        if !fits {
            return false;
        }
        let merged = match (Arc::make_mut(child), &*next) {
            (Node::Leaf(leaf), Node::Leaf(next)) => leaf.append(next),
            (Node::Branch(branch), Node::Branch(next)) => {
                let mut keys = branch.bounds.keys.to_vec();
                keys.push(bound);
                keys.extend(next.bounds.keys.iter().cloned());
                branch.bounds = ChildBounds::new(keys);
                branch.children.append(&mut next.children.clone());
                true
            }
            _ => false,
        };
        if merged {
            self.children.remove(index + 1);
            self.remove_bound(index);
        }
        merged
    }

    fn remove_bound(&mut self, index: usize) {
        let mut keys = self.bounds.keys.to_vec();
        keys.remove(index);
        self.bounds = ChildBounds::new(keys);
    }
}
