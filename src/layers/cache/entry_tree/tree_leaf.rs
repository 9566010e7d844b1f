//! A node of entries.

use std::sync::Arc;

use super::{
    CacheEntry, Node, Split,
    key_heads::{KeyHeads, common_prefix, search},
    node_slots::NodeSlots,
};

/// Entries per leaf. A change copies a leaf, so it must not be too large.
const LEAF_ENTRIES: usize = 32;
/// A leaf with fewer entries is merged with its neighbour if both fit well into one.
const SMALL_LEAF: usize = LEAF_ENTRIES / 4;
const MERGED_LEAF: usize = LEAF_ENTRIES * 3 / 4;

#[derive(Clone, Default)]
pub(super) struct Leaf {
    heads: KeyHeads<LEAF_ENTRIES>,
    entries: NodeSlots<CacheEntry, LEAF_ENTRIES>,
}

impl Leaf {
    fn with_entries(entries: NodeSlots<CacheEntry, LEAF_ENTRIES>) -> Self {
        let keys: Vec<&[u8]> = entries.iter().map(CacheEntry::key).collect();
        Self {
            heads: KeyHeads::of(keys.into_iter()),
            entries,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entry(&self, index: usize) -> Option<&CacheEntry> {
        self.entries.get(index)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&CacheEntry> {
        // The prefix is not compared: it is part of the key that the loop compares.
        self.heads
            .candidates(key, self.len())
            .filter_map(|index| self.entries.get(index))
            .find(|entry| entry.key() == key)
    }

    /// Returns the place of a key, or where it has to be inserted.
    pub(super) fn position(&self, key: &[u8]) -> Result<usize, usize> {
        let key_at = |index| self.entries.get(index).map_or(&[][..], CacheEntry::key);
        search(&self.heads, key, self.len(), key_at)
    }

    pub(super) fn insert(&mut self, entry: CacheEntry) -> (Option<CacheEntry>, Option<Split>) {
        let index = match self.position(entry.key()) {
            Ok(index) => return (self.entries.replace(index, entry), None),
            Err(index) => index,
        };
        if !self.entries.is_full() {
            self.insert_at(index, entry);
            return (None, None);
        }
        // Keys that arrive in ascending order, as in the first load, fill each leaf completely.
        let middle = if index == LEAF_ENTRIES {
            LEAF_ENTRIES
        } else {
            LEAF_ENTRIES / 2
        };
        let mut right = Self::with_entries(self.entries.split_off(middle));
        if index < middle || (index == middle && middle < LEAF_ENTRIES) {
            self.insert_at(index, entry);
        } else {
            right.insert_at(index - middle, entry);
        }
        let last = self.entry(self.len() - 1).map_or(&[][..], CacheEntry::key);
        let first = right.entry(0).map_or(&[][..], CacheEntry::key);
        // The shortest bound between the two keys.
        let bound = first[..=common_prefix(last, first)].into();
        let right = Arc::new(Node::Leaf(right));
        (None, Some(Split { bound, right }))
    }

    fn insert_at(&mut self, index: usize, entry: CacheEntry) {
        let prefix = self
            .entry(0)
            .and_then(|first| first.key().get(..self.heads.skip()));
        let has_prefix = prefix.is_some_and(|prefix| entry.key().starts_with(prefix));
        if has_prefix {
            self.heads.insert(index, self.len(), entry.key());
            self.entries.insert(index, entry);
        } else {
            self.entries.insert(index, entry);
            *self = Self::with_entries(std::mem::take(&mut self.entries));
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<CacheEntry> {
        let index = self.position(key).ok()?;
        self.heads.remove(index, self.len());
        self.entries.remove(index)
    }

    pub(super) fn is_small(&self) -> bool {
        self.len() < SMALL_LEAF
    }

    /// Appends the entries of the next leaf, if both fit well into one.
    pub(super) fn append(&mut self, next: &Self) -> bool {
        let fits = self.len() + next.len() <= MERGED_LEAF;
        if fits {
            self.entries.append(&mut next.entries.clone());
            *self = Self::with_entries(std::mem::take(&mut self.entries));
        }
        fits
    }
}
