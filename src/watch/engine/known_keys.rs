//! Computes what changed in a range whose history was compacted.
//!
//! The events are lost, but their sum can be computed: the whole range is read at one revision and compared with the
//! state that the consumer has. The revisions of an existing key show whether it changed. A deleted key is not in the
//! read, so a watch with the `resync` option stores its keys.

use std::collections::HashMap;

use crate::proto::KeyValue;

/// A deleted key and the last revision the consumer received for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeletedKey {
    pub(crate) key: Box<[u8]>,
    pub(crate) mod_revision: i64,
}

/// Changes that bring a consumer to the current state of the range. A key that was deleted and created again counts as
/// changed; its `create_revision` shows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RangeDifference {
    pub(crate) created: Vec<KeyValue>,
    pub(crate) changed: Vec<KeyValue>,
    /// Sorted by key.
    pub(crate) deleted: Vec<DeletedKey>,
}

/// Keys that the consumer has, with the last revision of each. The keys are copied: a shared slice would keep the
/// whole message it arrived in allocated.
#[derive(Debug, Default, Clone)]
pub(crate) struct KnownKeys {
    revisions: HashMap<Box<[u8]>, i64>,
}

impl KnownKeys {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.revisions.len()
    }

    /// Records a delivered put, or a key that existed before the watch.
    pub(crate) fn put(&mut self, key: &[u8], mod_revision: i64) {
        match self.revisions.get_mut(key) {
            Some(known) => *known = mod_revision,
            None => {
                self.revisions.insert(key.into(), mod_revision);
            }
        }
    }

    /// Records a delivered delete.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.revisions.remove(key);
    }

    /// Starts a comparison with a read of the range, page by page, all at the same revision. Keys older than
    /// `next_revision`, the cursor's, were delivered or existed before the watch.
    pub(crate) fn compare(&self, next_revision: i64) -> RangeComparison {
        RangeComparison {
            next_revision,
            restored: false,
            present: HashMap::with_capacity(self.revisions.len()),
            created: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Like [`compare`](Self::compare), for a cluster that was restored from a backup: it may have used revisions
    /// again, so an equal revision does not show that a key is unchanged.
    pub(crate) fn compare_restored(&self) -> RangeComparison {
        RangeComparison {
            restored: true,
            ..self.compare(0)
        }
    }
}

/// A comparison in progress. If the read fails half-way, it is dropped and [`KnownKeys`] is unchanged.
#[derive(Debug)]
pub(crate) struct RangeComparison {
    next_revision: i64,
    /// Whether every key of the consumer counts as changed.
    restored: bool,
    present: HashMap<Box<[u8]>, i64>,
    created: Vec<KeyValue>,
    changed: Vec<KeyValue>,
}

impl RangeComparison {
    /// Adds the next page. Every page needs the same `known`.
    pub(crate) fn add_page(&mut self, known: &KnownKeys, page: impl IntoIterator<Item = KeyValue>) {
        for kv in page {
            let known_revision = known.revisions.get(&kv.key[..]).copied();
            self.present.insert(kv.key[..].into(), kv.mod_revision);
            match known_revision {
                Some(revision) if revision == kv.mod_revision && !self.restored => {}
                Some(_) => self.changed.push(kv),
                None if kv.mod_revision < self.next_revision => {}
                None if kv.create_revision < self.next_revision => self.changed.push(kv),
                None => self.created.push(kv),
            }
        }
    }

    /// Returns the difference, and the keys that the consumer has once it received the difference.
    pub(crate) fn finish(self, known: &KnownKeys) -> (RangeDifference, KnownKeys) {
        let mut deleted: Vec<DeletedKey> = known
            .revisions
            .iter()
            .filter(|(key, _)| !self.present.contains_key(*key))
            .map(|(key, &mod_revision)| DeletedKey {
                key: key.clone(),
                mod_revision,
            })
            .collect();
        deleted.sort_unstable();
        let difference = RangeDifference {
            created: self.created,
            changed: self.changed,
            deleted,
        };
        let known = KnownKeys {
            revisions: self.present,
        };
        (difference, known)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{DeletedKey, KnownKeys, RangeDifference};
    use crate::proto::KeyValue;

    fn key(name: impl AsRef<[u8]>, create_revision: i64, mod_revision: i64) -> KeyValue {
        KeyValue {
            key: name.as_ref().to_vec().into(),
            create_revision,
            mod_revision,
            ..KeyValue::default()
        }
    }

    fn compare(
        known: &KnownKeys,
        next_revision: i64,
        current: Vec<KeyValue>,
    ) -> (RangeDifference, KnownKeys) {
        let mut comparison = known.compare(next_revision);
        comparison.add_page(known, current);
        comparison.finish(known)
    }

    #[test]
    fn created_changed_and_deleted_keys_are_distinguished() {
        let mut known = KnownKeys::default();
        for (name, revision) in [
            ("same", 3),
            ("changed", 4),
            ("gone", 5),
            ("again", 6),
            ("dropped", 7),
        ] {
            known.put(name.as_bytes(), revision);
        }
        known.delete(b"dropped");
        let current = vec![
            key("again", 12, 13),
            key("changed", 4, 11),
            key("new", 10, 10),
            key("same", 3, 3),
        ];
        let (difference, after) = compare(&known, 8, current);
        assert_eq!(difference.created, [key("new", 10, 10)]);
        assert_eq!(
            difference.changed,
            [key("again", 12, 13), key("changed", 4, 11)]
        );
        assert_eq!(
            difference.deleted,
            [DeletedKey {
                key: b"gone"[..].into(),
                mod_revision: 5
            }]
        );
        assert_eq!(after.len(), 4);
        assert_eq!(
            known.len(),
            4,
            "unchanged until the difference is delivered"
        );
    }

    #[test]
    fn restored_cluster_reports_every_key() {
        let mut known = KnownKeys::default();
        known.put(b"both", 3);
        known.put(b"gone", 9);
        let mut comparison = known.compare_restored();
        comparison.add_page(&known, vec![key("back", 2, 2), key("both", 3, 3)]);
        let (difference, after) = comparison.finish(&known);
        assert_eq!(difference.created, [key("back", 2, 2)]);
        assert_eq!(difference.changed, [key("both", 3, 3)]);
        assert_eq!(difference.deleted.len(), 1);
        assert_eq!(after.len(), 2);
    }

    #[test]
    fn key_older_than_watch_is_reported_only_when_deleted() {
        let (first, known) = compare(&KnownKeys::default(), 8, vec![key("old", 2, 7)]);
        assert_eq!((first.created, first.changed), (vec![], vec![]));
        let (second, _) = compare(&known, 20, vec![]);
        assert_eq!(second.deleted.len(), 1);
    }

    #[test]
    fn older_key_modified_since_is_changed() {
        let (difference, _) = compare(&KnownKeys::default(), 8, vec![key("old", 2, 9)]);
        assert_eq!(difference.changed, [key("old", 2, 9)]);
    }

    #[test]
    fn pages_add_up() {
        let mut known = KnownKeys::default();
        known.put(b"b", 1);
        let mut comparison = known.compare(5);
        comparison.add_page(&known, [key("a", 6, 6)]);
        comparison.add_page(&known, [key("b", 1, 1)]);
        let (difference, _) = comparison.finish(&known);
        assert_eq!(
            difference,
            RangeDifference {
                created: vec![key("a", 6, 6)],
                changed: vec![],
                deleted: vec![]
            }
        );
    }

    proptest! {
        /// A consumer follows the first part of a history by events and the rest by one difference.
        #[test]
        fn difference_brings_consumer_to_current_state(
            history in prop::collection::vec((0..6_u8, any::<bool>()), 0..60),
            cut in 0..60_usize,
        ) {
            let cut = cut.min(history.len());
            let (mut range, mut consumer, mut known) =
                (BTreeMap::new(), BTreeMap::new(), KnownKeys::default());
            let mut lost_puts = BTreeMap::new();
            for (index, (revision, &(name, put))) in (2..).zip(&history).enumerate() {
                let name = vec![name];
                if put {
                    let create = range.get(&name).map_or(revision, |&(create, _)| create);
                    range.insert(name.clone(), (create, revision));
                } else {
                    range.remove(&name);
                }
                if index >= cut {
                    lost_puts.insert(name, revision);
                } else if put {
                    known.put(&name, revision);
                    consumer.insert(name, revision);
                } else {
                    known.delete(&name);
                    consumer.remove(&name);
                }
            }
            let next = 2 + i64::try_from(cut).expect("short");
            let current =
                range.iter().map(|(name, &(create, modified))| key(name, create, modified));
            let (difference, after) = compare(&known, next, current.collect());
            for kv in difference.created {
                let known = consumer.insert(kv.key.to_vec(), kv.mod_revision);
                prop_assert!(known.is_none(), "created but known");
            }
            for kv in difference.changed {
                prop_assert!(lost_puts.contains_key(&kv.key[..]));
                let known = consumer.insert(kv.key.to_vec(), kv.mod_revision);
                prop_assert!(known.is_some_and(|old| old != kv.mod_revision));
            }
            for gone in difference.deleted {
                prop_assert_eq!(consumer.remove(&gone.key[..]), Some(gone.mod_revision));
            }
            let present: BTreeMap<_, _> =
                range.into_iter().map(|(name, (_, modified))| (name, modified)).collect();
            prop_assert_eq!(&consumer, &present);
            prop_assert_eq!(after.len(), present.len());
        }
    }
}
