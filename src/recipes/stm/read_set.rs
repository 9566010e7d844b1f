//! What an attempt has read, and the conditions under which it is still true.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::kv::{Compare, KeyValue};

/// What an attempt knows about a key.
#[derive(Debug, PartialEq)]
pub(super) enum Known<T> {
    /// Nothing: a request is needed.
    Unread,
    /// The key, or `None` if it does not exist.
    Read(Option<T>),
}

/// The keys and prefixes that an attempt has read.
#[derive(Debug, Default)]
pub(super) struct ReadSet {
    /// The first read of each key; `None` if it did not exist.
    keys: BTreeMap<Bytes, Option<KeyValue>>,
    /// The revision at which each prefix was read.
    prefixes: BTreeMap<Bytes, i64>,
}

impl ReadSet {
    /// Returns what is known about a key, as of its first read.
    pub(super) fn get(&self, key: &[u8]) -> Known<&KeyValue> {
        let covers = |prefix: &Bytes| key.starts_with(prefix);
        match self.keys.get(key) {
            Some(found) => Known::Read(found.as_ref()),
            None if self.prefixes.keys().any(covers) => Known::Read(None),
            None => Known::Unread,
        }
    }

    /// Records a key. An earlier read of it is kept.
    pub(super) fn insert(&mut self, key: Bytes, found: Option<KeyValue>) {
        if self.get(&key) == Known::Unread {
            self.keys.insert(key, found);
        }
    }

    pub(super) fn has_prefix(&self, prefix: &[u8]) -> bool {
        let covers = |read: &Bytes| prefix.starts_with(read);
        self.prefixes.keys().any(covers)
    }

    /// Records all keys with a prefix, as of this revision. Earlier reads of single keys are kept.
    pub(super) fn insert_prefix(&mut self, prefix: Bytes, revision: i64, found: Vec<KeyValue>) {
        for kv in found {
            self.insert(kv.key.clone(), Some(kv));
        }
        self.prefixes.insert(prefix, revision);
    }

    /// Returns the keys with this prefix that existed when they were read.
    pub(super) fn with_prefix(&self, prefix: &Bytes) -> BTreeMap<Bytes, Bytes> {
        let from_prefix = self.keys.range(prefix.clone()..);
        from_prefix
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, found)| Some((key.clone(), found.as_ref()?.value.clone())))
            .collect()
    }

    /// Returns conditions that hold while nothing that was read has changed.
    pub(super) fn unchanged(&self) -> Vec<Compare> {
        let keys = self.keys.iter().map(|(key, found)| {
            let revision = found.as_ref().map_or(0, |kv| kv.mod_revision);
            Compare::mod_revision(key.clone()).eq(revision)
        });
        // Keys that were added or changed have a later revision; removed ones are among `keys`.
        let prefixes = self.prefixes.iter().map(|(prefix, revision)| {
            let no_later = Compare::mod_revision(prefix.clone()).lt(revision + 1);
            no_later.prefix()
        });
        keys.chain(prefixes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, mod_revision: i64) -> KeyValue {
        KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from(mod_revision.to_string()),
            mod_revision,
            ..KeyValue::default()
        }
    }

    #[test]
    fn first_read_of_a_key_is_kept() {
        let mut reads = ReadSet::default();
        reads.insert(Bytes::from_static(b"a/1"), Some(kv("a/1", 3)));
        reads.insert(Bytes::from_static(b"a/2"), None);
        reads.insert_prefix(
            Bytes::from_static(b"a/"),
            9,
            vec![kv("a/1", 8), kv("a/2", 9), kv("a/3", 7)],
        );
        assert_eq!(reads.get(b"a/1"), Known::Read(Some(&kv("a/1", 3))));
        assert_eq!(reads.get(b"a/2"), Known::Read(None));
        let found: Vec<_> = reads
            .with_prefix(&Bytes::from_static(b"a/"))
            .into_iter()
            .collect();
        assert_eq!(
            found,
            [("a/1".into(), "3".into()), ("a/3".into(), "7".into())]
        );
        assert_eq!(reads.unchanged().len(), 4);
    }

    #[test]
    fn prefix_covers_its_absent_keys() {
        let mut reads = ReadSet::default();
        reads.insert_prefix(Bytes::from_static(b"a/"), 9, Vec::new());
        assert_eq!(reads.get(b"a/1"), Known::Read(None));
        assert_eq!(reads.get(b"b"), Known::Unread);
        assert!(reads.has_prefix(b"a/b/") && !reads.has_prefix(b"a"));
        assert_eq!(reads.unchanged().len(), 1);
    }
}
