//! What a watch tells.

use std::{fmt, ops::Deref, sync::Arc};

use actix::Message;
use bytes::Bytes;

use super::engine::resync::Difference;
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::{Event, KeyValue, event::EventType},
};

/// One thing a watch tells. The last one is [`Ended`](Self::Ended), always and once.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum WatchEvent {
    /// Everything that happened at one revision.
    Events(RevisionEvents),
    /// Everything up to this revision has been delivered. On request: `progress_notify` or `request_progress`.
    Progress(i64),
    /// The member or the stream was lost; the watch looks for another. On request: `notices`.
    Disconnected(Arc<Error>),
    /// The watch goes on where it was. On request: `notices`.
    Resumed,
    /// The reader is slow and the buffer full: the watch rests on the server and goes on, where it was, once half of
    /// the buffer is read. On request: `notices`.
    Paused,
    /// The member is behind what this watch has seen: it lags for a moment, or was restored from an old backup.
    /// RevisionEvents go on once it has caught up.
    RevisionRegressed {
        /// The highest revision this watch was shown.
        seen: i64,
        /// The revision of this member.
        told: i64,
    },
    /// History was compacted away; this is what it came to. On request: `resync`.
    Resynced(Box<Resynced>),
    /// Nothing follows, and this is why.
    Ended(WatchEnd),
}

/// Why a watch ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WatchEnd {
    /// Its owner wanted so.
    Cancelled,
    /// What should have come next is gone from the history.
    Compacted {
        /// The oldest revision that can still be watched.
        revision: i64,
    },
    /// The user may not read this range.
    PermissionDenied(Error),
    /// It could not go on for longer than its `max_outage`.
    OutageTooLong {
        /// What stopped it last, where that is known.
        last: Option<Error>,
    },
    /// The members belong to another cluster now: its revisions have nothing to do with those seen so far.
    ClusterChanged {
        /// The cluster's id so far.
        was: u64,
        /// The id now.
        is: u64,
    },
    /// The server refuses the watch for good, or its events are larger than the client's `max_response_size`.
    Refused(Error),
    /// The client was shut down.
    Shutdown,
}

impl WatchEnd {
    /// The same as an error, for a watch that never began.
    pub(crate) fn to_error(&self) -> Error {
        let (kind, text) = match self {
            Self::Cancelled => (ErrorKind::WatchCanceled, "it was cancelled"),
            Self::Compacted { .. } => (ErrorKind::Compacted, ""),
            Self::OutageTooLong { .. } => (ErrorKind::Unavailable, "the outage was too long"),
            Self::ClusterChanged { .. } => (ErrorKind::ClusterChanged, ""),
            Self::PermissionDenied(error) | Self::Refused(error) => return error.clone(),
            Self::Shutdown => return Error::shut_down(),
        };
        Error::new(kind, Outcome::Rejected, text)
    }
}

impl fmt::Display for WatchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("the watch was cancelled"),
            Self::Compacted { revision } => write!(
                f,
                "the history before revision {revision} has been compacted away"
            ),
            Self::PermissionDenied(error) | Self::Refused(error) => {
                write!(f, "the watch is refused: {error}")
            }
            Self::OutageTooLong { last: Some(error) } => {
                write!(f, "the outage was too long; last: {error}")
            }
            Self::OutageTooLong { last: None } => f.write_str("the outage was too long"),
            Self::ClusterChanged { was, is } => {
                write!(f, "the cluster was {was:x} and is {is:x}")
            }
            Self::Shutdown => f.write_str("the client has been shut down"),
        }
    }
}

/// Everything that happened at one revision: a slice of [`Event`]s, at least one. Clones are cheap.
#[derive(Clone)]
pub struct RevisionEvents {
    /// The answer they came in, which may hold other revisions as well.
    batch: Arc<Vec<Event>>,
    from: usize,
    to: usize,
}

impl RevisionEvents {
    /// The revision they all have.
    pub fn revision(&self) -> i64 {
        self.first().map_or(0, Event::revision)
    }
}

impl Deref for RevisionEvents {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.batch[self.from..self.to]
    }
}

impl<'a> IntoIterator for &'a RevisionEvents {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for RevisionEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A batch being handed out revision by revision, without a copy.
#[derive(Debug)]
pub(super) struct Revisions {
    batch: Arc<Vec<Event>>,
    next: usize,
}

impl Revisions {
    pub(super) fn new(batch: Vec<Event>) -> Self {
        Self {
            batch: Arc::new(batch),
            next: 0,
        }
    }

    /// The next events, if there are any. A batch goes with its last events: a reader that rests after them
    /// must not keep what it has read.
    pub(super) fn take(current: &mut Option<Self>) -> Option<RevisionEvents> {
        let events = current.as_mut()?.next();
        current.take_if(|batch| batch.next == batch.batch.len());
        events
    }
}

impl Iterator for Revisions {
    type Item = RevisionEvents;

    fn next(&mut self) -> Option<RevisionEvents> {
        let from = self.next;
        let revision = self.batch.get(from)?.revision();
        let others = self.batch[from + 1..]
            .iter()
            .take_while(|event| event.revision() == revision);
        self.next = from + 1 + others.count();
        Some(RevisionEvents {
            batch: self.batch.clone(),
            from,
            to: self.next,
        })
    }
}

impl Event {
    /// The revision it happened at.
    pub fn revision(&self) -> i64 {
        self.kv.as_ref().map_or(0, |kv| kv.mod_revision)
    }

    /// The key it happened to.
    pub fn key(&self) -> &[u8] {
        self.kv.as_ref().map_or(&[], |kv| &kv.key)
    }

    /// The new value; empty for a delete.
    pub fn value(&self) -> &[u8] {
        self.kv.as_ref().map_or(&[], |kv| &kv.value)
    }

    /// Whether the key was written.
    pub fn is_put(&self) -> bool {
        self.r#type() == EventType::Put
    }

    /// Whether the key was deleted, or its lease ended.
    pub fn is_delete(&self) -> bool {
        self.r#type() == EventType::Delete
    }

    /// Whether the key did not exist before.
    pub fn is_create(&self) -> bool {
        let new = |kv: &KeyValue| kv.create_revision == kv.mod_revision;
        self.is_put() && self.kv.as_ref().is_some_and(new)
    }
}

/// What compacted history came to: the difference between what the watch has told and the range as it was at one
/// revision. RevisionEvents go on after that revision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resynced {
    /// The revision the range was read at.
    pub revision: i64,
    /// Keys that are new.
    pub created: Vec<KeyValue>,
    /// Keys that have another value, or were deleted and created again.
    pub changed: Vec<KeyValue>,
    /// Keys that are gone, in their order.
    pub deleted: Vec<Bytes>,
}

impl Resynced {
    pub(crate) fn new(revision: i64, difference: Difference<KeyValue>) -> Self {
        Self {
            revision,
            created: difference.created,
            changed: difference.changed,
            deleted: difference
                .deleted
                .into_iter()
                .map(|gone| gone.key.into())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: i64) -> Event {
        Event {
            kv: Some(KeyValue {
                mod_revision: revision,
                ..KeyValue::default()
            }),
            ..Event::default()
        }
    }

    #[test]
    fn a_batch_is_handed_out_by_revision_and_goes_with_its_last_events() {
        let mut current = Some(Revisions::new(vec![event(4), event(5), event(5)]));
        let first = Revisions::take(&mut current).unwrap();
        assert_eq!((first.revision(), first.len()), (4, 1));
        drop(first);
        let last = Revisions::take(&mut current).unwrap();
        assert_eq!((last.revision(), last.len()), (5, 2));
        assert_eq!(Arc::strong_count(&last.batch), 1, "only the reader has it");
        assert!(Revisions::take(&mut current).is_none());
    }
}
