//! Lists of instances, and the difference between two lists.

use std::{collections::BTreeMap, fmt, ops::Deref, sync::Arc};

use bytes::Bytes;

use super::Instance;
use crate::proto::{Event, KeyValue};

/// The instances of a service at one revision, in the order of their keys.
#[derive(Clone, Default, PartialEq)]
pub struct Instances {
    revision: i64,
    list: Vec<Arc<Instance>>,
}

impl Instances {
    /// Returns the revision of the list: a read of the service's keys at this revision gives the same list.
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

/// The current instances, and the difference from the previous event.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct InstancesChange {
    /// All current instances.
    pub instances: Arc<Instances>,
    /// Instances that are new.
    pub joined: Vec<Arc<Instance>>,
    /// Instances with a new address or new metadata.
    pub changed: Vec<Arc<Instance>>,
    /// Instances that were removed, as last listed.
    pub left: Vec<Arc<Instance>>,
}

impl InstancesChange {
    /// Returns the first change, which lists all instances as new.
    pub(super) fn first(now: &Arc<Instances>) -> Self {
        Self {
            instances: now.clone(),
            joined: now.to_vec(),
            changed: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Returns the difference between two lists, or `None` if they have the same instances.
    pub(super) fn between(before: &[Arc<Instance>], now: &Arc<Instances>) -> Option<Self> {
        let mut change = Self {
            joined: Vec::new(),
            ..Self::first(now)
        };
        let mut old: BTreeMap<&Bytes, &Arc<Instance>> = before
            .iter()
            .map(|instance| (&instance.key, instance))
            .collect();
        for instance in now.iter() {
            match old.remove(&instance.key) {
                None => change.joined.push(instance.clone()),
                Some(was) if was != instance => change.changed.push(instance.clone()),
                Some(_) => {}
            }
        }
        change.left = old.into_values().cloned().collect();
        let parts = [&change.joined, &change.changed, &change.left];
        let unchanged = parts.iter().all(|part| part.is_empty());
        (!unchanged).then_some(change)
    }
}

/// The instances of a service by key, updated by reads and events.
#[derive(Debug, Default)]
pub(super) struct InstanceTable {
    revision: i64,
    instances: BTreeMap<Bytes, Arc<Instance>>,
}

impl InstanceTable {
    /// Replaces all instances.
    pub(super) fn replace(&mut self, revision: i64, kvs: &[KeyValue]) {
        let mut before = std::mem::take(&mut self.instances);
        self.revision = revision;
        for kv in kvs {
            let known = before.remove(&kv.key);
            self.insert(kv, known);
        }
    }

    /// Applies all events of one revision.
    pub(super) fn apply(&mut self, revision: i64, events: &[Event]) {
        self.revision = revision;
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let known = self.instances.remove(&kv.key);
            if event.is_put() {
                self.insert(kv, known);
            }
        }
    }

    fn insert(&mut self, kv: &KeyValue, known: Option<Arc<Instance>>) {
        match Instance::decode(&kv.key, &kv.value) {
            Ok(instance) => {
                // An unchanged instance keeps its allocation, which makes lists cheap to compare.
                let same = known.filter(|known| **known == instance);
                let instance = same.unwrap_or_else(|| Arc::new(instance));
                self.instances.insert(kv.key.clone(), instance);
            }
            Err(reason) => {
                tracing::warn!(key = ?kv.key, reason, "skipped key that is not an instance");
            }
        }
    }

    /// Returns the revision of the last update; zero before the first.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn instances(&self) -> Instances {
        Instances {
            revision: self.revision,
            list: self.instances.values().cloned().collect(),
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

    fn value(addr: &str) -> String {
        super::super::instance::encode(addr, &serde_json::Value::Null)
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
        list.iter().map(|instance| instance.addr.as_str()).collect()
    }

    #[test]
    fn change_lists_joined_changed_and_left() {
        let mut table = InstanceTable::default();
        table.replace(5, &[kv("s/a", &value("a")), kv("s/b", &value("b"))]);
        let before = table.instances();
        assert_eq!(before.revision(), 5);
        table.apply(6, &[delete("s/a"), put("s/c", &value("c"))]);
        table.apply(7, &[put("s/b", &value("b2"))]);
        let now = Arc::new(table.instances());
        let change = InstancesChange::between(&before, &now).unwrap();
        assert_eq!(addrs(&change.instances), ["b2", "c"]);
        assert_eq!(addrs(&change.joined), ["c"]);
        assert_eq!(addrs(&change.changed), ["b2"]);
        assert_eq!(addrs(&change.left), ["a"]);
    }

    #[test]
    fn same_instances_at_later_revision_are_no_change() {
        let mut table = InstanceTable::default();
        table.replace(5, &[kv("s/a", &value("a"))]);
        let before = table.instances();
        table.apply(6, &[put("s/a", &value("a"))]);
        table.apply(7, &[put("s/nonsense", "?")]);
        let now = Arc::new(table.instances());
        assert_eq!(now.revision(), 7);
        assert_eq!(InstancesChange::between(&before, &now), None);
    }

    #[test]
    fn instance_with_invalid_value_has_left() {
        let mut table = InstanceTable::default();
        table.replace(5, &[kv("s/a", &value("a"))]);
        let before = table.instances();
        table.apply(6, &[put("s/a", "?")]);
        let now = Arc::new(table.instances());
        let change = InstancesChange::between(&before, &now).unwrap();
        assert_eq!(addrs(&change.left), ["a"]);
    }

    proptest! {
        /// A table that follows events equals one that reads the same keys, and so does the sum of its changes.
        #[test]
        fn followed_list_equals_fresh_read(
            steps in proptest::collection::vec((0..5_u8, proptest::option::of(0..4_u8)), 0..40),
        ) {
            let mut followed = InstanceTable::default();
            let mut expected: BTreeMap<String, String> = BTreeMap::new();
            let mut summed = Vec::new();
            for (revision, (key, value)) in (1..).zip(steps) {
                let key = format!("s/{key}");
                let event = if let Some(value) = value {
                    let value = if value == 0 { "?".to_owned() } else { self::value(&value.to_string()) };
                    expected.insert(key.clone(), value.clone());
                    put(&key, &value)
                } else {
                    expected.remove(&key);
                    delete(&key)
                };
                followed.apply(revision, &[event]);
                let now = Arc::new(followed.instances());
                if let Some(change) = InstancesChange::between(&summed, &now) {
                    // The sum of all changes is the list as well.
                    summed.retain(|known: &Arc<Instance>| {
                        let gone = change.left.iter().chain(&change.changed);
                        gone.into_iter().all(|gone| gone.key != known.key)
                    });
                    summed.extend(change.joined.into_iter().chain(change.changed));
                    summed.sort_by(|a, b| a.key.cmp(&b.key));
                }
                prop_assert_eq!(&summed[..], &now[..]);
                let kvs: Vec<_> = expected.iter().map(|(key, value)| kv(key, value)).collect();
                let mut read = InstanceTable::default();
                read.replace(revision, &kvs);
                prop_assert_eq!(read.instances(), followed.instances());
            }
        }
    }
}
