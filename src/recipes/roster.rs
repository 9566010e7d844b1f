//! The instances of a service as they are at one revision, and what is different from one list to another.

use std::{collections::BTreeMap, fmt, ops::Deref, sync::Arc};

use bytes::Bytes;

use super::naming::Instance;
use crate::proto::{Event, KeyValue};

/// The instances of a service at one revision, in the order of their keys.
#[derive(Clone, Default, PartialEq)]
pub struct Instances {
    revision: i64,
    list: Vec<Arc<Instance>>,
}

impl Instances {
    /// The revision: a read of the service's keys at it gives the same list.
    pub fn revision(&self) -> i64 {
        self.revision
    }
}

impl Deref for Instances {
    type Target = [Arc<Instance>];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

impl<'a> IntoIterator for &'a Instances {
    type Item = &'a Arc<Instance>;
    type IntoIter = std::slice::Iter<'a, Arc<Instance>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances")
            .field("revision", &self.revision)
            .field("list", &self.list)
            .finish()
    }
}

/// The instances now, and what is different from what was told before.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Change {
    /// All of them.
    pub instances: Arc<Instances>,
    /// Those that were not there before.
    pub joined: Vec<Arc<Instance>>,
    /// Those that have another address or other metadata.
    pub changed: Vec<Arc<Instance>>,
    /// Those that are not there any more, as they were.
    pub left: Vec<Arc<Instance>>,
}

impl Change {
    /// From nothing, which is worth telling even where there is nobody.
    pub(super) fn first(now: &Arc<Instances>) -> Self {
        Self {
            instances: now.clone(),
            joined: now.to_vec(),
            changed: Vec::new(),
            left: Vec::new(),
        }
    }

    /// From one list to another; `None` where both have the same instances.
    pub(super) fn between(before: &[Arc<Instance>], now: &Arc<Instances>) -> Option<Self> {
        let mut change = Self {
            joined: Vec::new(),
            ..Self::first(now)
        };
        let mut old: BTreeMap<&Bytes, &Arc<Instance>> =
            before.iter().map(|found| (&found.key, found)).collect();
        for found in now.iter() {
            match old.remove(&found.key) {
                None => change.joined.push(found.clone()),
                Some(was) if was != found => change.changed.push(found.clone()),
                Some(_) => {}
            }
        }
        change.left = old.into_values().cloned().collect();
        let parts = [&change.joined, &change.changed, &change.left];
        let same = parts.iter().all(|part| part.is_empty());
        (!same).then_some(change)
    }
}

/// Follows what happens to the keys of a service.
#[derive(Debug, Default)]
pub(super) struct Roster {
    revision: i64,
    found: BTreeMap<Bytes, Arc<Instance>>,
}

impl Roster {
    /// The keys were read anew.
    pub(super) fn replace(&mut self, revision: i64, found: &[KeyValue]) {
        let mut before = std::mem::take(&mut self.found);
        self.revision = revision;
        for kv in found {
            // What has not changed stays the same object: it is cheap to compare.
            let known = before.remove(&kv.key);
            self.put(kv, known);
        }
    }

    /// Everything that happened at one revision.
    pub(super) fn apply(&mut self, revision: i64, events: &[Event]) {
        self.revision = revision;
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let known = self.found.remove(&kv.key);
            if event.is_put() {
                self.put(kv, known);
            }
        }
    }

    fn put(&mut self, kv: &KeyValue, known: Option<Arc<Instance>>) {
        match Instance::read(&kv.key, &kv.value) {
            Ok(found) => {
                let same = known.filter(|known| **known == found);
                let found = same.unwrap_or_else(|| Arc::new(found));
                self.found.insert(kv.key.clone(), found);
            }
            Err(why) => tracing::warn!(key = ?kv.key, why, "a key is no instance of a service"),
        }
    }

    /// The revision of the last thing it was told; zero before the first.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn instances(&self) -> Instances {
        Instances {
            revision: self.revision,
            list: self.found.values().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::event::EventType;
    use proptest::prelude::*;

    fn kv(key: &str, value: &str) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            ..KeyValue::default()
        }
    }

    fn at(addr: &str) -> String {
        super::super::naming::write(addr, &serde_json::Value::Null)
    }

    fn put(key: &str, value: &str) -> Event {
        Event {
            kv: Some(kv(key, value)),
            ..Event::default()
        }
    }

    fn delete(key: &str) -> Event {
        Event {
            r#type: EventType::Delete.into(),
            ..put(key, "")
        }
    }

    fn addrs(list: &[Arc<Instance>]) -> Vec<&str> {
        list.iter().map(|found| found.addr.as_str()).collect()
    }

    #[test]
    fn a_change_names_who_joined_who_changed_and_who_left() {
        let mut roster = Roster::default();
        roster.replace(5, &[kv("s/a", &at("a")), kv("s/b", &at("b"))]);
        let before = roster.instances();
        assert_eq!(before.revision(), 5);
        roster.apply(6, &[delete("s/a"), put("s/c", &at("c"))]);
        roster.apply(7, &[put("s/b", &at("b2"))]);
        let now = Arc::new(roster.instances());
        let change = Change::between(&before, &now).unwrap();
        assert_eq!(addrs(&change.instances), ["b2", "c"]);
        assert_eq!(addrs(&change.joined), ["c"]);
        assert_eq!(addrs(&change.changed), ["b2"]);
        assert_eq!(addrs(&change.left), ["a"]);
    }

    #[test]
    fn the_same_instances_are_no_change_at_whatever_revision() {
        let mut roster = Roster::default();
        roster.replace(5, &[kv("s/a", &at("a"))]);
        let before = roster.instances();
        roster.apply(6, &[put("s/a", &at("a"))]);
        roster.apply(7, &[put("s/nonsense", "?")]);
        let now = Arc::new(roster.instances());
        assert_eq!(now.revision(), 7);
        assert_eq!(Change::between(&before, &now), None);
    }

    #[test]
    fn an_instance_whose_value_is_spoiled_has_left() {
        let mut roster = Roster::default();
        roster.replace(5, &[kv("s/a", &at("a"))]);
        let before = roster.instances();
        roster.apply(6, &[put("s/a", "?")]);
        let now = Arc::new(roster.instances());
        let change = Change::between(&before, &now).unwrap();
        assert_eq!(addrs(&change.left), ["a"]);
    }

    proptest! {
        /// However a list came about, it is what a read of the same keys gives.
        #[test]
        fn following_gives_the_same_list_as_reading(
            steps in proptest::collection::vec((0..5_u8, proptest::option::of(0..4_u8)), 0..40),
        ) {
            let mut followed = Roster::default();
            let mut truth: BTreeMap<String, String> = BTreeMap::new();
            let mut told = Vec::new();
            for (revision, (key, value)) in (1..).zip(steps) {
                let key = format!("s/{key}");
                let event = if let Some(value) = value {
                    let value = if value == 0 { "?".to_owned() } else { at(&value.to_string()) };
                    truth.insert(key.clone(), value.clone());
                    put(&key, &value)
                } else {
                    truth.remove(&key);
                    delete(&key)
                };
                followed.apply(revision, &[event]);
                let now = Arc::new(followed.instances());
                if let Some(change) = Change::between(&told, &now) {
                    // Whoever only follows the differences has the list, too.
                    told.retain(|had: &Arc<Instance>| {
                        let gone = change.left.iter().chain(&change.changed);
                        gone.into_iter().all(|gone| gone.key != had.key)
                    });
                    told.extend(change.joined.into_iter().chain(change.changed));
                    told.sort_by(|a, b| a.key.cmp(&b.key));
                }
                prop_assert_eq!(&told[..], &now[..]);
                let kvs: Vec<_> = truth.iter().map(|(key, value)| kv(key, value)).collect();
                let mut read = Roster::default();
                read.replace(revision, &kvs);
                prop_assert_eq!(read.instances(), followed.instances());
            }
        }
    }
}
