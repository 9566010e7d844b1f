//! The keys of a cache at one revision.

use std::{
    fmt,
    ops::{Bound, RangeBounds},
};

use super::{
    CacheEntry,
    entry_tree::{EntryTree, TreeRange},
};

/// All keys of a cache at one revision. Clones are cheap, and a snapshot never changes.
///
/// A snapshot that is kept shares the entries and most of its memory with later ones, except for what has changed.
#[derive(Clone, Default)]
pub struct CacheSnapshot {
    pub(super) tree: EntryTree,
    pub(super) revision: i64,
    /// Cluster that the keys were read from; 0 if it is unknown.
    pub(super) cluster: u64,
}

impl CacheSnapshot {
    /// Returns the revision: a read of the cached keys at this revision gives the same key-values.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the entry of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<CacheEntry> {
        self.tree.get(key.as_ref()).cloned()
    }

    /// Returns whether the key exists.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> bool {
        self.tree.get(key.as_ref()).is_some()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns about how many bytes of memory the entries take.
    pub fn memory(&self) -> usize {
        self.tree.memory()
    }

    /// Returns all entries in the order of their keys.
    pub fn iter(&self) -> CacheRange {
        CacheRange(self.tree.range(Bound::Unbounded, Bound::Unbounded))
    }

    /// Returns the entries of a range of keys, in their order: `snapshot.range("a".."b")`.
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> CacheRange {
        let start = keys.start_bound().map(AsRef::as_ref);
        let end = keys.end_bound().map(|end| Box::from(end.as_ref()));
        CacheRange(self.tree.range(start, end))
    }

    /// Returns the entries whose keys start with a prefix, in the order of their keys.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> CacheRange {
        let prefix = prefix.as_ref();
        let end = match prefix.iter().rposition(|byte| *byte < 0xff) {
            Some(last) => {
                let mut end: Box<[u8]> = prefix[..=last].into();
                end[last] += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        CacheRange(self.tree.range(Bound::Included(prefix), end))
    }
}

impl fmt::Debug for CacheSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSnapshot")
            .field("revision", &self.revision)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl IntoIterator for &CacheSnapshot {
    type Item = CacheEntry;
    type IntoIter = CacheRange;

    fn into_iter(self) -> CacheRange {
        self.iter()
    }
}

/// The entries of a cache in the order of their keys, all at one revision.
#[derive(Clone)]
#[must_use = "an iterator does nothing until it is read"]
pub struct CacheRange(TreeRange);

impl Iterator for CacheRange {
    type Item = CacheEntry;

    fn next(&mut self) -> Option<CacheEntry> {
        self.0.next()
    }
}

impl fmt::Debug for CacheRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheRange")
    }
}
