//! Trees compared with a map of the standard library.

use std::{collections::BTreeMap, ops::Bound};

use proptest::prelude::*;

use super::*;
use crate::kv::KeyValue;

type Model = BTreeMap<Vec<u8>, i64>;

fn entry(key: &[u8], revision: i64) -> CacheEntry {
    let kv = KeyValue {
        key: key.to_vec().into(),
        mod_revision: revision,
        ..KeyValue::default()
    };
    CacheEntry::new(&kv, &mut Vec::new())
}

fn contents(entries: impl Iterator<Item = CacheEntry>) -> Vec<(Vec<u8>, i64)> {
    let pair = |entry: CacheEntry| (entry.key().to_vec(), entry.mod_revision());
    entries.map(pair).collect()
}

fn all(tree: &EntryTree) -> TreeRange {
    tree.range(Bound::Unbounded, Bound::Unbounded)
}

fn check(tree: &EntryTree, model: &Model) {
    let expected: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(contents(all(tree)), expected);
    assert_eq!(tree.len(), model.len());
    assert_eq!(
        tree.memory(),
        all(tree).map(|entry| entry.memory()).sum::<usize>()
    );
    for (key, revision) in model {
        assert_eq!(tree.get(key).map(CacheEntry::mod_revision), Some(*revision));
    }
}

/// Keys with long common prefixes, few bytes, zeros and different lengths.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop::collection::vec(
        prop_oneof![Just(0), Just(b'a'), Just(0xff), any::<u8>()],
        0..4,
    );
    let start = prop::sample::select(vec![&b""[..], b"users/", b"users/000", b"users/0000000"]);
    (start, tail).prop_map(|(start, tail)| [start, &tail[..]].concat())
}

/// Sum of the differences of two trees.
fn apply_difference(before: &EntryTree, after: &EntryTree) -> Model {
    let mut sum: Model = contents(all(before)).into_iter().collect();
    for (old, new) in TreeDiff::new(before, after) {
        assert_ne!(old, new);
        if let Some(old) = &old {
            assert_eq!(sum.remove(old.key()), Some(old.mod_revision()));
        }
        if let Some(new) = &new {
            assert_eq!(sum.insert(new.key().to_vec(), new.mod_revision()), None);
        }
    }
    sum
}

proptest! {
    #[test]
    fn tree_equals_map_after_any_changes(
        changes in prop::collection::vec((keys(), any::<bool>()), 0..600),
        clone_at in 0..600_usize,
        from in keys(),
        to in keys(),
    ) {
        let (mut tree, mut model) = (EntryTree::default(), Model::new());
        let mut clone = (tree.clone(), model.clone());
        for (index, (key, put)) in changes.into_iter().enumerate() {
            if index == clone_at {
                clone = (tree.clone(), model.clone());
            }
            let revision = i64::try_from(index).unwrap();
            let (removed, expected) = if put {
                (tree.insert(entry(&key, revision)), model.insert(key, revision))
            } else {
                (tree.remove(&key), model.remove(&key))
            };
            prop_assert_eq!(removed.map(|entry| entry.mod_revision()), expected);
        }
        check(&tree, &model);
        check(&clone.0, &clone.1);
        prop_assert_eq!(apply_difference(&clone.0, &tree), model.clone());
        prop_assert_eq!(apply_difference(&tree, &clone.0), clone.1);
        let range = tree.range(Bound::Included(&from), Bound::Excluded(to.clone().into()));
        let expected = model.iter().filter(|(key, _)| **key >= from && **key < to);
        let expected: Vec<_> = expected.map(|(key, value)| (key.clone(), *value)).collect();
        prop_assert_eq!(contents(range), expected);
        let range = tree.range(Bound::Excluded(&from), Bound::Included(to.clone().into()));
        let expected = model.iter().filter(|(key, _)| **key > from && **key <= to);
        let expected: Vec<_> = expected.map(|(key, value)| (key.clone(), *value)).collect();
        prop_assert_eq!(contents(range), expected);
    }
}

#[test]
fn large_tree_equals_map_while_it_grows_and_shrinks() {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut tree, mut model) = (EntryTree::default(), Model::new());
    let mut clones = Vec::new();
    for revision in 0..60_000 {
        let key = format!("users/{:05}", random.u32(..20_000)).into_bytes();
        // Grows in the first half, shrinks in the second.
        if random.u32(..60_000) > revision {
            tree.insert(entry(&key, i64::from(revision)));
            model.insert(key, i64::from(revision));
        } else {
            tree.remove(&key);
            model.remove(&key);
        }
        if revision % 10_000 == 0 {
            clones.push((tree.clone(), model.clone()));
        }
    }
    check(&tree, &model);
    for (clone, model) in &clones {
        check(clone, model);
        assert_eq!(&apply_difference(&tree, clone), model);
    }
    for key in model.into_keys() {
        assert!(tree.remove(&key).is_some());
    }
    assert_eq!((tree.len(), tree.memory(), tree.root.height()), (0, 0, 0));
}

#[test]
fn difference_skips_shared_nodes() {
    let mut tree = EntryTree::default();
    for number in 0..10_000 {
        tree.insert(entry(format!("k/{number:05}").as_bytes(), 1));
    }
    let before = tree.clone();
    tree.insert(entry(b"k/05000", 2));
    let mut difference = TreeDiff::new(&before, &tree);
    let (old, new) = difference.next().unwrap();
    assert_eq!(old.unwrap().mod_revision(), 1);
    assert_eq!(new.unwrap().mod_revision(), 2);
    assert!(difference.next().is_none());
    let leaves = |tree: &EntryTree| {
        let mut count = 0;
        let mut nodes = vec![tree.root.clone()];
        while let Some(node) = nodes.pop() {
            match &*node {
                Node::Leaf(_) => count += 1,
                Node::Branch(branch) => {
                    nodes
                        .extend((0..branch.len()).filter_map(|index| branch.child(index).cloned()));
                }
            }
        }
        count
    };
    assert_eq!(
        leaves(&before),
        10_000_usize.div_ceil(32),
        "ascending keys fill their leaves"
    );
}

#[test]
fn removal_of_missing_key_copies_nothing() {
    let mut tree = EntryTree::default();
    tree.insert(entry(b"a", 1));
    let clone = tree.clone();
    assert!(tree.remove(b"b").is_none());
    assert!(tree.is_same(&clone));
}
