//! What a watch was asked for, what it told, and what truly happened.

use std::collections::BTreeMap;

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It was written.
    Put,
    /// It was deleted, or its lease ended.
    Delete,
}

/// The state of a key before an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previous {
    /// Its value.
    pub value: Vec<u8>,
    /// The revision of its last change.
    pub mod_revision: i64,
}

/// One change of one key, as a server tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEvent {
    /// What happened.
    pub kind: EventKind,
    /// To which key.
    pub key: Vec<u8>,
    /// The new value; empty for a delete.
    pub value: Vec<u8>,
    /// When the key was created; 0 for a delete.
    pub create_revision: i64,
    /// When this happened.
    pub mod_revision: i64,
    /// How many times it was written since its creation; 0 for a delete.
    pub version: i64,
    /// The state before, if the watch asked for it and the server still had it.
    pub previous: Option<Previous>,
}

/// What a watch told its consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Everything of one revision.
    Events {
        /// The revision the item was labelled with.
        revision: i64,
        /// The changes in it.
        events: Vec<KeyEvent>,
    },
    /// Everything up to this revision has been delivered.
    Progress(i64),
    /// The stream was lost.
    Disconnected,
    /// The watch goes on.
    Resumed,
    /// The consumer is too slow.
    Lagging,
    /// The range was read anew at this revision: events up to it are not expected.
    Resynced(i64),
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The key, or the first of the range.
    pub key: Vec<u8>,
    /// `None`: the key alone. Empty: every key from `key` on. Otherwise the end of the range, exclusive.
    pub range_end: Option<Vec<u8>>,
    /// The first revision wanted; 0 for a watch from now on.
    pub start_revision: i64,
    /// Puts are not wanted.
    pub no_puts: bool,
    /// Deletes are not wanted.
    pub no_deletes: bool,
    /// The state before each event was asked for.
    pub prev_kv: bool,
}

impl Request {
    /// A watch of one key.
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

    /// A watch of every key with a prefix.
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

    /// Whether a change belongs to this watch.
    pub fn wants(&self, change: &KeyEvent) -> bool {
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

/// What truly happened: every change, by revision.
#[derive(Debug, Clone, Default)]
pub struct History {
    revisions: BTreeMap<i64, Vec<KeyEvent>>,
}

impl History {
    /// The history made of these changes, in any order; `previous` in them is not looked at.
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

    /// The last revision in which anything happened.
    pub fn last_revision(&self) -> i64 {
        self.revisions
            .last_key_value()
            .map_or(0, |(revision, _)| *revision)
    }

    pub(super) fn revisions(&self) -> impl Iterator<Item = &Vec<KeyEvent>> {
        self.revisions.values()
    }

    /// The changes that belong to a watch, from one revision to another, both included.
    pub(super) fn wanted<'a>(
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
            .filter(|change| request.wants(change))
    }
}
