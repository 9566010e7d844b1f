//! What changed in a range while its history was compacted away.
//!
//! Events can't be had any more, but their sum can: a read of the whole range at one revision, against
//! what the consumer has been told. What is present says by its own revisions whether it is news; only
//! what is *missing* needs memory, so a watch that asked for resync remembers its keys.

use std::collections::HashMap;

/// A key of a range read.
pub(crate) trait Keyed {
    fn key(&self) -> &[u8];
    fn create_revision(&self) -> i64;
    fn mod_revision(&self) -> i64;
}

/// A key that is gone, and the revision it was last known at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gone {
    pub(crate) key: Box<[u8]>,
    pub(crate) mod_revision: i64,
}

/// What a consumer has to do to be where the range is. A key that was deleted and created again
/// counts as changed; its `create_revision` tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference<K> {
    pub(crate) created: Vec<K>,
    pub(crate) changed: Vec<K>,
    /// In the order of their keys.
    pub(crate) deleted: Vec<Gone>,
}

/// The keys a consumer knows of. They are copied: a shared slice would keep alive the whole message it
/// came in.
#[derive(Debug, Default, Clone)]
pub(crate) struct Known {
    keys: HashMap<Box<[u8]>, i64>,
}

impl Known {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The consumer was told of a put, or had the key before the watch began.
    pub(crate) fn put(&mut self, key: &[u8], mod_revision: i64) {
        match self.keys.get_mut(key) {
            Some(known) => *known = mod_revision,
            None => {
                self.keys.insert(key.into(), mod_revision);
            }
        }
    }

    /// The consumer was told of a delete.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    /// Starts to compare with a read of the range, page by page, all at the same revision.
    /// `next_revision` is the cursor's: what is older was delivered, or was there before the watch.
    pub(crate) fn resync<K: Keyed>(&self, next_revision: i64) -> Resync<K> {
        Resync {
            next_revision,
            present: HashMap::with_capacity(self.keys.len()),
            created: Vec::new(),
            changed: Vec::new(),
        }
    }
}

/// A comparison under way. A read that fails half-way is dropped and leaves [`Known`] as it was.
#[derive(Debug)]
pub(crate) struct Resync<K> {
    next_revision: i64,
    present: HashMap<Box<[u8]>, i64>,
    created: Vec<K>,
    changed: Vec<K>,
}

impl<K: Keyed> Resync<K> {
    /// The next page, against the same `known` for every page.
    pub(crate) fn page(&mut self, known: &Known, keys: impl IntoIterator<Item = K>) {
        for key in keys {
            let known = known.keys.get(key.key()).copied();
            self.present.insert(key.key().into(), key.mod_revision());
            match known {
                // Any other revision is a change, a lower one too: the cluster was restored.
                Some(revision) if revision == key.mod_revision() => {}
                Some(_) => self.changed.push(key),
                None if key.mod_revision() < self.next_revision => {}
                None if key.create_revision() < self.next_revision => self.changed.push(key),
                None => self.created.push(key),
            }
        }
    }

    /// The read is complete: the difference, and what the consumer knows once it has got it.
    pub(crate) fn finish(self, known: &Known) -> (Difference<K>, Known) {
        let mut deleted: Vec<Gone> = known
            .keys
            .iter()
            .filter(|(key, _)| !self.present.contains_key(*key))
            .map(|(key, &mod_revision)| Gone {
                key: key.clone(),
                mod_revision,
            })
            .collect();
        deleted.sort_unstable();
        let difference = Difference {
            created: self.created,
            changed: self.changed,
            deleted,
        };
        (difference, Known { keys: self.present })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{Difference, Gone, Keyed, Known};

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Key(Vec<u8>, i64, i64);

    impl Keyed for Key {
        fn key(&self) -> &[u8] {
            &self.0
        }
        fn create_revision(&self) -> i64 {
            self.1
        }
        fn mod_revision(&self) -> i64 {
            self.2
        }
    }

    fn key(name: &str, create: i64, modified: i64) -> Key {
        Key(name.into(), create, modified)
    }

    fn compare(known: &Known, next: i64, fresh: Vec<Key>) -> (Difference<Key>, Known) {
        let mut resync = known.resync(next);
        resync.page(known, fresh);
        resync.finish(known)
    }

    #[test]
    fn created_changed_and_deleted_are_told_apart() {
        let mut known = Known::default();
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
        let fresh = vec![
            key("again", 12, 13),
            key("changed", 4, 11),
            key("new", 10, 10),
            key("same", 3, 3),
        ];
        let (difference, after) = compare(&known, 8, fresh);
        assert_eq!(difference.created, [key("new", 10, 10)]);
        assert_eq!(
            difference.changed,
            [key("again", 12, 13), key("changed", 4, 11)]
        );
        assert_eq!(
            difference.deleted,
            [Gone {
                key: b"gone"[..].into(),
                mod_revision: 5
            }]
        );
        assert_eq!(after.len(), 4);
        assert_eq!(
            known.len(),
            4,
            "untouched until the difference is delivered"
        );
    }

    #[test]
    fn key_older_than_the_watch_is_no_news_but_its_end_is() {
        let (first, known) = compare(&Known::default(), 8, vec![key("old", 2, 7)]);
        assert_eq!((first.created, first.changed), (vec![], vec![]));
        let (second, _) = compare(&known, 20, vec![]);
        assert_eq!(second.deleted.len(), 1);
    }

    #[test]
    fn key_older_than_the_watch_that_changed_since_is_changed() {
        let (difference, _) = compare(&Known::default(), 8, vec![key("old", 2, 9)]);
        assert_eq!(difference.changed, [key("old", 2, 9)]);
    }

    #[test]
    fn pages_add_up() {
        let mut known = Known::default();
        known.put(b"b", 1);
        let mut resync = known.resync(5);
        resync.page(&known, [key("a", 6, 6)]);
        resync.page(&known, [key("b", 1, 1)]);
        let (difference, _) = resync.finish(&known);
        assert_eq!(
            difference,
            Difference {
                created: vec![key("a", 6, 6)],
                changed: vec![],
                deleted: vec![]
            }
        );
    }

    proptest! {
        /// A consumer that follows the first part of a history by events and the rest by one
        /// difference ends where the history does.
        #[test]
        fn difference_brings_the_consumer_to_the_range(
            history in prop::collection::vec((0..6_u8, any::<bool>()), 0..60),
            cut in 0..60_usize,
        ) {
            let cut = cut.min(history.len());
            let (mut range, mut consumer, mut known) = (BTreeMap::new(), BTreeMap::new(), Known::default());
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
            let fresh = range.iter().map(|(name, &(create, modified))| Key(name.clone(), create, modified));
            let (difference, after) = compare(&known, next, fresh.collect());
            for key in difference.created {
                prop_assert!(consumer.insert(key.0, key.2).is_none(), "created but known");
            }
            for key in difference.changed {
                prop_assert!(lost_puts.contains_key(&key.0));
                prop_assert!(consumer.insert(key.0, key.2).is_some_and(|old| old != key.2));
            }
            for gone in difference.deleted {
                prop_assert_eq!(consumer.remove(&gone.key[..]), Some(gone.mod_revision));
            }
            let present: BTreeMap<_, _> = range.into_iter().map(|(name, (_, modified))| (name, modified)).collect();
            prop_assert_eq!(&consumer, &present);
            prop_assert_eq!(after.len(), present.len());
        }
    }
}
