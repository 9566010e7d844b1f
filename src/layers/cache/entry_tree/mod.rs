//! The keys of a cache: a sorted tree whose clones are cheap and independent of each other.
//!
//! A clone shares all nodes. A change copies the nodes on the way to the changed entry, unless no clone shares them: the
//! task of a cache changes many entries between two clones, and copies each node at most once per clone. Two trees that
//! share nodes are compared without a look into the shared ones.
//!
//! Every node has the first bytes of its keys behind the prefix that they have in common, so that a search reads almost
//! only nodes, and not the keys in the entries.

mod key_heads;
mod node_slots;
mod tree_branch;
mod tree_diff;
mod tree_leaf;
mod tree_range;

use std::{fmt, sync::Arc};

use self::{tree_branch::Branch, tree_leaf::Leaf};
pub(super) use self::{tree_diff::TreeDiff, tree_range::TreeRange};
use super::CacheEntry;

/// Sorted entries. Clones are cheap.
#[derive(Clone)]
pub(super) struct EntryTree {
    root: Arc<Node>,
    len: usize,
    memory: usize,
}

#[derive(Clone)]
enum Node {
    Leaf(Leaf),
    Branch(Branch),
}

/// The second half of a node that was full, and the bound between the halves.
struct Split {
    bound: Box<[u8]>,
    right: Arc<Node>,
}

impl Default for EntryTree {
    fn default() -> Self {
        Self {
            root: Arc::new(Node::Leaf(Leaf::default())),
            len: 0,
            memory: 0,
        }
    }
}

impl EntryTree {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns about how many bytes of memory the entries take.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Returns whether both trees are the same clone, without a change in between.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&CacheEntry> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(leaf) => return leaf.get(key),
                Node::Branch(branch) => node = branch.child_of(key)?,
            }
        }
    }

    /// Inserts an entry. Returns the one that had its key.
    pub(super) fn insert(&mut self, entry: CacheEntry) -> Option<CacheEntry> {
        self.memory += entry.memory();
        let (previous, split) = insert_into(&mut self.root, entry);
        if let Some(split) = split {
            let left = std::mem::replace(&mut self.root, split.right.clone());
            self.root = Arc::new(Node::Branch(Branch::new(left, split)));
        }
        match &previous {
            Some(previous) => self.memory -= previous.memory(),
            None => self.len += 1,
        }
        previous
    }

    /// Removes the entry of a key and returns it.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<CacheEntry> {
        // A search first: the removal of a key that does not exist must copy no nodes.
        self.get(key)?;
        let removed = remove_from(&mut self.root, key)?;
        self.memory -= removed.memory();
        self.len -= 1;
        while let Node::Branch(branch) = &*self.root
            && let Some(only) = branch.only_child()
        {
            self.root = only.clone();
        }
        Some(removed)
    }
}

impl fmt::Debug for EntryTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryTree")
            .field("len", &self.len)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Node {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.len(),
            Self::Branch(branch) => branch.len(),
        }
    }

    /// Returns the number of levels below this node.
    fn height(&self) -> u8 {
        match self {
            Self::Leaf(_) => 0,
            Self::Branch(branch) => branch.height(),
        }
    }
}

fn insert_into(node: &mut Arc<Node>, entry: CacheEntry) -> (Option<CacheEntry>, Option<Split>) {
    match Arc::make_mut(node) {
        Node::Leaf(leaf) => leaf.insert(entry),
        Node::Branch(branch) => {
            let index = branch.index_of(entry.key());
            let Some(child) = branch.child_mut(index) else {
                return (None, None);
            };
            let (previous, split) = insert_into(child, entry);
            let split = split.and_then(|split| branch.insert(index, split));
            (previous, split)
        }
    }
}

fn remove_from(node: &mut Arc<Node>, key: &[u8]) -> Option<CacheEntry> {
    match Arc::make_mut(node) {
        Node::Leaf(leaf) => leaf.remove(key),
        Node::Branch(branch) => {
            let index = branch.index_of(key);
            let removed = remove_from(branch.child_mut(index)?, key)?;
            branch.merge_if_small(index);
            Some(removed)
        }
    }
}

#[cfg(test)]
mod tests;
