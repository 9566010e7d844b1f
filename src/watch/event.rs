//! The events of a watch, and how it ends.

use std::{fmt, ops::Deref, sync::Arc};

use actix::Message;
use bytes::Bytes;

use super::{Freshness, engine::known_keys::RangeDifference};
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::{Event, KeyValue, event::EventType},
};

/// An item of a [`Watch`](super::Watch). The last item is always [`Ended`](Self::Ended), exactly once.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum WatchEvent {
    /// All changes of one revision.
    Events(RevisionEvents),
    /// Everything up to this revision was delivered. Sent only with `progress_notify`, or after `request_progress`.
    ///
    /// A server before etcd 3.4.25 or 3.5.8 may respond to `request_progress` before it has sent all events up to this
    /// revision. Then they follow this item: none is lost, but this item was early.
    Progress(i64),
    /// The watch lost its stream for this reason and requests another one. Sent only with `status_events`.
    Disconnected(Arc<Error>),
    /// The watch continues where it was interrupted. Sent only with `status_events`.
    Resumed,
    /// The buffer is full because the consumer is slow. The watch continues without a gap once the consumer has read
    /// half of the buffer. Sent only with `status_events`.
    Paused,
    /// The member is behind a revision that this watch has received: it lags for a moment, or the cluster was restored
    /// from an old backup or lost its data. The watch then reads the current revision of the cluster from a majority of
    /// its members. If the member only lags, events continue once it has caught up. Otherwise
    /// [`Resynced`](Self::Resynced) follows with `resync`, and [`WatchEnd::RevisionRegressed`] without.
    RevisionRegressed {
        /// Highest revision that this watch has received.
        seen: i64,
        /// Current revision of the member.
        current: i64,
    },
    /// The next revisions were compacted, or the cluster was restored from an old backup; this is the sum of the
    /// changes. Sent only with `resync`.
    Resynced(Box<Resynced>),
    /// How complete the watch is. Sent only with `report_freshness`.
    Freshness(Box<Freshness>),
    /// The watch ended, for this reason. No item follows.
    Ended(WatchEnd),
}

/// Why a watch ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WatchEnd {
    /// It was cancelled, or its handle was dropped.
    Cancelled,
    /// The next revision was compacted. With `resync` a watch continues instead.
    Compacted {
        /// Oldest revision that can still be watched.
        revision: i64,
    },
    /// The user may not read this range.
    PermissionDenied(Error),
    /// It was interrupted for longer than its `max_outage`.
    OutageTooLong {
        /// Error of the last attempt to continue, if there was one.
        last: Option<Error>,
    },
    /// The members belong to another cluster now, whose revisions are unrelated.
    ClusterChanged {
        /// Id of the cluster so far.
        previous: u64,
        /// Id of the cluster now.
        current: u64,
    },
    /// The cluster is at an older revision than before, although its id is the same: it was restored from an old backup,
    /// or lost its data. With `resync` a watch continues instead.
    RevisionRegressed {
        /// Highest revision that this watch has received.
        seen: i64,
        /// Current revision of the cluster.
        current: i64,
    },
    /// The server refuses the watch permanently, or a response is larger than the client's `max_response_size`.
    Refused(Error),
    /// The client was shut down.
    Shutdown,
}

impl WatchEnd {
    /// Returns the reason as an error, for a watch that was never created.
    pub(crate) fn to_error(&self) -> Error {
        let (kind, reason) = match self {
            Self::Cancelled => (ErrorKind::WatchCanceled, "the watch was cancelled"),
            Self::Compacted { .. } => (ErrorKind::Compacted, ""),
            Self::OutageTooLong { .. } => (
                ErrorKind::Unavailable,
                "the watch was interrupted for longer than `max_outage`",
            ),
            Self::ClusterChanged { .. } => (ErrorKind::ClusterChanged, ""),
            Self::RevisionRegressed { .. } => (ErrorKind::RevisionRegressed, ""),
            Self::PermissionDenied(error) | Self::Refused(error) => return error.clone(),
            Self::Shutdown => return Error::shut_down(),
        };
        Error::new(kind, Outcome::Rejected, reason)
    }
}

impl fmt::Display for WatchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("the watch was cancelled"),
            Self::Compacted { revision } => {
                write!(f, "revisions before {revision} were compacted")
            }
            Self::PermissionDenied(error) | Self::Refused(error) => {
                write!(f, "the watch was refused: {}", error.brief())
            }
            Self::OutageTooLong { last: Some(error) } => write!(
                f,
                "the watch was interrupted for longer than `max_outage`: {}",
                error.brief()
            ),
            Self::OutageTooLong { last: None } => {
                f.write_str("the watch was interrupted for longer than `max_outage`")
            }
            Self::ClusterChanged { previous, current } => {
                write!(f, "the cluster id changed from {previous:x} to {current:x}")
            }
            Self::RevisionRegressed { seen, current } => write!(
                f,
                "the cluster is at revision {current}, but was at {seen} before: it was restored from a \
                 backup or lost its data"
            ),
            Self::Shutdown => f.write_str("the client was shut down"),
        }
    }
}

/// All changes of one revision: a slice of at least one [`Event`]. Clones are cheap.
#[derive(Clone)]
pub struct RevisionEvents {
    /// Events received together, which may include other revisions.
    batch: Arc<Vec<Event>>,
    from: usize,
    to: usize,
}

impl RevisionEvents {
    /// Returns the revision of the changes.
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

/// Splits a batch into revisions without copying its events.
#[derive(Debug)]
pub(super) struct RevisionSplitter {
    batch: Arc<Vec<Event>>,
    next: usize,
}

impl RevisionSplitter {
    pub(super) fn new(batch: Vec<Event>) -> Self {
        Self {
            batch: Arc::new(batch),
            next: 0,
        }
    }

    /// Returns the next revision of the current batch, if there is one. Drops the batch with its last revision: a
    /// consumer that then waits must not keep the events it has read.
    pub(super) fn take(current: &mut Option<Self>) -> Option<RevisionEvents> {
        let events = current.as_mut()?.next();
        current.take_if(|batch| batch.next == batch.batch.len());
        events
    }
}

impl Iterator for RevisionSplitter {
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
    /// Returns the revision of the change.
    pub fn revision(&self) -> i64 {
        self.kv.as_ref().map_or(0, |kv| kv.mod_revision)
    }

    /// Returns the changed key.
    pub fn key(&self) -> &[u8] {
        self.kv.as_ref().map_or(&[], |kv| &kv.key)
    }

    /// Returns the new value; empty for a delete.
    pub fn value(&self) -> &[u8] {
        self.kv.as_ref().map_or(&[], |kv| &kv.value)
    }

    /// Returns whether the key was written.
    pub fn is_put(&self) -> bool {
        self.r#type() == EventType::Put
    }

    /// Returns whether the key was deleted, by a request or with its lease.
    pub fn is_delete(&self) -> bool {
        self.r#type() == EventType::Delete
    }

    /// Returns whether the key was written and did not exist before.
    pub fn is_create(&self) -> bool {
        let is_new = |kv: &KeyValue| kv.create_revision == kv.mod_revision;
        self.is_put() && self.kv.as_ref().is_some_and(is_new)
    }
}

/// Sum of the changes that the watch cannot deliver as events: the difference between the delivered state and the range
/// at one revision. Events continue after that revision.
///
/// After a restore from a backup, the revision is lower than that of earlier events. `changed` then contains every key
/// that still exists, because the same revision may stand for another value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resynced {
    /// Revision at which the range was read.
    pub revision: i64,
    /// New keys.
    pub created: Vec<KeyValue>,
    /// Keys that were written, or deleted and created again.
    pub changed: Vec<KeyValue>,
    /// Deleted keys, sorted.
    pub deleted: Vec<Bytes>,
    /// Whether the cluster was restored from a backup, so that the revision may be lower than earlier ones.
    pub(crate) restored: bool,
}

impl Resynced {
    pub(crate) fn new(revision: i64, difference: RangeDifference) -> Self {
        Self {
            revision,
            created: difference.created,
            changed: difference.changed,
            deleted: difference
                .deleted
                .into_iter()
                .map(|deleted| deleted.key.into())
                .collect(),
            restored: false,
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
    fn batch_is_split_by_revision_and_dropped_with_last() {
        let mut current = Some(RevisionSplitter::new(vec![event(4), event(5), event(5)]));
        let first = RevisionSplitter::take(&mut current).unwrap();
        assert_eq!((first.revision(), first.len()), (4, 1));
        drop(first);
        let last = RevisionSplitter::take(&mut current).unwrap();
        assert_eq!((last.revision(), last.len()), (5, 2));
        assert_eq!(
            Arc::strong_count(&last.batch),
            1,
            "only the consumer owns the batch"
        );
        assert!(RevisionSplitter::take(&mut current).is_none());
    }

    #[test]
    fn watch_end_prints_its_reason_only() {
        let error = Error::new(ErrorKind::NoLeader, Outcome::Unknown, "the member is gone");
        for end in [
            WatchEnd::PermissionDenied(error.clone()),
            WatchEnd::Refused(error.clone()),
            WatchEnd::OutageTooLong { last: Some(error) },
        ] {
            let text = end.to_string();
            assert!(text.ends_with(": the member is gone"), "{text}");
        }
    }
}
