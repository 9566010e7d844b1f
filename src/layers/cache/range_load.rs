//! A read of all keys, compared with the entries that the cache has.

use std::{iter::Peekable, ops::Bound};

use super::{
    CacheEntry,
    entry_tree::{EntryTree, TreeRange},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::KeyValue,
};

/// Turns the entries of a cache into those of a read, which adds its key-values in order. Unchanged entries stay, so
/// that the next tree shares its nodes with the one before.
pub(super) struct RangeLoad {
    next: EntryTree,
    before: Peekable<TreeRange>,
    /// Memory of the entries read so far.
    memory: usize,
    max_bytes: usize,
    buffer: Vec<u8>,
}

impl RangeLoad {
    pub(super) fn new(before: &EntryTree, max_bytes: usize) -> Self {
        Self {
            next: before.clone(),
            before: before.range(Bound::Unbounded, Bound::Unbounded).peekable(),
            memory: 0,
            max_bytes,
            buffer: Vec::new(),
        }
    }

    /// Adds the next key-value of the read. Fails if they need more memory than allowed.
    pub(super) fn add(&mut self, kv: &KeyValue) -> Result<()> {
        while let Some(gone) = self.before.next_if(|entry| entry.key() < &kv.key[..]) {
            self.next.remove(gone.key());
        }
        CacheEntry::encode(kv, &mut self.buffer);
        let known = self.before.next_if(|entry| entry.key() == kv.key);
        // Compared as a whole: after a restore from a backup, the same revision may have another value.
        let unchanged = known.filter(|entry| entry.encoded() == self.buffer);
        let entry = unchanged.unwrap_or_else(|| {
            let entry = CacheEntry::of_encoding(&self.buffer);
            self.next.insert(entry.clone());
            entry
        });
        self.memory += entry.memory();
        check_memory(self.memory, self.max_bytes)
    }

    /// Returns the tree after the last key-value.
    pub(super) fn finish(mut self) -> EntryTree {
        for gone in self.before {
            self.next.remove(gone.key());
        }
        self.next
    }
}

/// Fails if entries need more memory than allowed.
pub(super) fn check_memory(memory: usize, max_bytes: usize) -> Result<()> {
    if memory <= max_bytes {
        return Ok(());
    }
    let reason = format!(
        "the keys of the cache need more than {memory} bytes of memory, and `max_bytes` is {max_bytes}"
    );
    Err(Error::new(
        ErrorKind::CacheTooLarge,
        Outcome::NotSent,
        reason,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::cache::entry_tree::TreeDiff;

    fn kv(key: &str, value: &str) -> KeyValue {
        KeyValue {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            ..KeyValue::default()
        }
    }

    fn loaded(before: &EntryTree, kvs: &[KeyValue]) -> EntryTree {
        let mut load = RangeLoad::new(before, 10_000);
        for kv in kvs {
            load.add(kv).unwrap();
        }
        load.finish()
    }

    #[test]
    fn load_keeps_unchanged_entries_and_finds_the_difference() {
        let before = loaded(
            &EntryTree::default(),
            &[kv("a", "1"), kv("b", "1"), kv("c", "1"), kv("d", "1")],
        );
        let after = loaded(&before, &[kv("aa", "1"), kv("b", "1"), kv("c", "2")]);
        let unchanged = |tree: &EntryTree| tree.get(b"b").cloned().unwrap();
        assert!(unchanged(&before).is_same(&unchanged(&after)));
        let key =
            |entry: Option<CacheEntry>| entry.map(|entry| entry.key_str().unwrap().to_owned());
        let difference: Vec<_> = TreeDiff::new(&before, &after)
            .map(|(before, after)| (key(before), key(after)))
            .collect();
        let some = |key: &str| Some(key.to_owned());
        assert_eq!(
            difference,
            [
                (some("a"), None),
                (None, some("aa")),
                (some("c"), some("c")),
                (some("d"), None)
            ]
        );
        assert!(loaded(&after, &[kv("aa", "1"), kv("b", "1"), kv("c", "2")]).is_same(&after));
    }

    #[test]
    fn load_fails_above_the_bound() {
        let mut load = RangeLoad::new(&EntryTree::default(), 300);
        load.add(&kv("a", "1")).unwrap();
        let error = load.add(&kv("b", &"2".repeat(300))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CacheTooLarge);
        assert!(error.to_string().contains("raise `max_bytes`"), "{error}");
    }
}
