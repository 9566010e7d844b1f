//! What an attempt writes.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::kv::{Compare, Op, delete, put};

/// The last write of one key.
#[derive(Debug, Clone)]
pub(super) enum KeyWrite {
    Put { value: Bytes, lease: i64 },
    Delete,
}

impl KeyWrite {
    /// Returns the value that a read of the same attempt finds.
    pub(super) fn value(&self) -> Option<&Bytes> {
        match self {
            Self::Put { value, .. } => Some(value),
            Self::Delete => None,
        }
    }
}

/// The writes of an attempt, which are sent with its commit.
#[derive(Debug, Default)]
pub(super) struct WriteSet(BTreeMap<Bytes, KeyWrite>);

impl WriteSet {
    pub(super) fn get(&self, key: &[u8]) -> Option<&KeyWrite> {
        self.0.get(key)
    }

    pub(super) fn insert(&mut self, key: Bytes, write: KeyWrite) {
        self.0.insert(key, write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Applies the writes of keys with this prefix to keys and values that were read.
    pub(super) fn apply_to(&self, prefix: &Bytes, found: &mut BTreeMap<Bytes, Bytes>) {
        let from_prefix = self.0.range(prefix.clone()..);
        for (key, write) in from_prefix.take_while(|(key, _)| key.starts_with(prefix)) {
            match write.value() {
                Some(value) => found.insert(key.clone(), value.clone()),
                None => found.remove(key),
            };
        }
    }

    /// Returns conditions that hold while none of the selected keys was put after this revision.
    pub(super) fn not_put_after(
        &self,
        revision: i64,
        selected: impl Fn(&Bytes) -> bool,
    ) -> impl Iterator<Item = Compare> {
        let keys = self.0.keys().filter(move |key| selected(key));
        keys.map(move |key| Compare::mod_revision(key.clone()).lt(revision + 1))
    }

    pub(super) fn into_ops(self) -> Vec<Op> {
        let op = |(key, write)| match write {
            KeyWrite::Put { value, lease } => put(key, value).lease(lease).into(),
            KeyWrite::Delete => delete(key).into(),
        };
        self.0.into_iter().map(op).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_a_prefix_include_own_writes() {
        let mut writes = WriteSet::default();
        let value = |value: &'static str| KeyWrite::Put {
            value: value.into(),
            lease: 0,
        };
        for (key, write) in [
            ("a/1", KeyWrite::Delete),
            ("a/2", value("new")),
            ("a/3", value("added")),
            ("b", value("other")),
        ] {
            writes.insert(key.into(), write);
        }
        let mut found = BTreeMap::from([
            (Bytes::from("a/1"), Bytes::from("old")),
            (Bytes::from("a/2"), Bytes::from("old")),
        ]);
        writes.apply_to(&Bytes::from("a/"), &mut found);
        let found: Vec<_> = found.into_iter().collect();
        assert_eq!(
            found,
            [("a/2".into(), "new".into()), ("a/3".into(), "added".into())]
        );
    }
}
