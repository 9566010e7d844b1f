//! The request of a watch, the items it delivered, and the history of the keys.

use std::collections::BTreeMap;

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The key was written.
    Put,
    /// The key was deleted, or its lease ended.
    Delete,
}

/// State of a key before an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// Value of the key.
    pub value: Vec<u8>,
    /// Revision of the last change before the event.
    pub mod_revision: i64,
}

/// Change of one key, as a watch event reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEvent {
    /// Kind of the change.
    pub kind: EventKind,
    /// The key.
    pub key: Vec<u8>,
    /// New value; empty for a delete.
    pub value: Vec<u8>,
    /// Revision that created the key; 0 for a delete.
    pub create_revision: i64,
    /// Revision of the change.
    pub mod_revision: i64,
    /// Number of writes since the key was created; 0 for a delete.
    pub version: i64,
    /// Previous state, if the watch requested it and the server still had it.
    pub previous: Option<Previous>,
}

/// Item that a watch delivered to its consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// All events of one revision.
    Events {
        /// Revision of the item.
        revision: i64,
        /// The events.
        events: Vec<KeyEvent>,
    },
    /// All events up to this revision were delivered.
    Progress(i64),
    /// The stream was lost.
    Disconnected,
    /// The watch was resumed.
    Resumed,
    /// The watch was paused, because its consumer is too slow.
    Paused,
    /// The range was read again at this revision; events up to it are not delivered.
    Resynced(i64),
}

/// Request of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The key, or the start of the range.
    pub key: Vec<u8>,
    /// End of the range, exclusive. `None` for a single key, empty for all keys from `key`.
    pub range_end: Option<Vec<u8>>,
    /// First revision to deliver; 0 to start with the next change.
    pub start_revision: i64,
    /// Do not deliver puts.
    pub no_puts: bool,
    /// Do not deliver deletes.
    pub no_deletes: bool,
    /// Deliver the previous state with each event.
    pub prev_kv: bool,
}

impl Request {
    /// Watches one key.
    pub fn key(key: impl Into<Vec<u8>>, start_revision: i64) -> Self {
        Self {
            key: key.into(),
            range_end: None,
            start_revision,
            no_puts: false,
            no_deletes: false,
            prev_kv: false,
        }
    }

    /// Watches all keys with a prefix.
    pub fn prefix(prefix: impl Into<Vec<u8>>, start_revision: i64) -> Self {
        let prefix = prefix.into();
        let mut end = prefix.clone();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Self {
            range_end: Some(end),
            ..Self::key(prefix, start_revision)
        }
    }

    /// Returns whether the watch delivers a change.
    pub fn matches(&self, change: &KeyEvent) -> bool {
        let in_range = match self.range_end.as_deref() {
            None => change.key == self.key,
            Some([]) => change.key >= self.key,
            Some(end) => change.key >= self.key && change.key.as_slice() < end,
        };
        in_range
            && match change.kind {
                EventKind::Put => !self.no_puts,
                EventKind::Delete => !self.no_deletes,
            }
    }
}

/// All changes of the keys, by revision.
#[derive(Debug, Clone, Default)]
pub struct History {
    revisions: BTreeMap<i64, Vec<KeyEvent>>,
}

impl History {
    /// Creates a history from changes in any order. Ignores their `previous`.
    pub fn new(changes: impl IntoIterator<Item = KeyEvent>) -> Self {
        let mut revisions: BTreeMap<i64, Vec<KeyEvent>> = BTreeMap::new();
        for change in changes {
            revisions
                .entry(change.mod_revision)
                .or_default()
                .push(change);
        }
        Self { revisions }
    }

    /// Returns the revision of the last change.
    pub fn last_revision(&self) -> i64 {
        self.revisions
            .last_key_value()
            .map_or(0, |(revision, _)| *revision)
    }

    pub(super) fn revisions(&self) -> impl Iterator<Item = &Vec<KeyEvent>> {
        self.revisions.values()
    }

    /// Returns the changes that a watch delivers, in an inclusive range of revisions.
    pub(super) fn matching<'a>(
        &'a self,
        request: &'a Request,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = &'a KeyEvent> {
        let revisions = (from <= to).then(|| self.revisions.range(from..=to));
        revisions
            .into_iter()
            .flatten()
            .flat_map(|(_, changes)| changes)
            .filter(|change| request.matches(change))
    }
}
