//! Up to which revision a watch is complete, and when that was confirmed.
//!
//! Confirmations come from events and from progress of the stream. A confirmation holds for the consumer once the
//! consumer has read all events that the stream had sent before it. Progress for a whole stream is stored once per stream
//! ([`StreamProgress`]), not sent to each of its watches.
//!
//! etcd sends no progress while a watch of the stream waits for a revision that does not exist yet, which is the case
//! for every watch that was created or resumed after the last write. Then the probes of the member confirm the watch: if
//! the member's revision is one up to which the watch is complete, the watch was complete when the probe was sent.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::watch, time::Instant};

use super::watch_stream::ProgressResponse;
use crate::{
    connection::{MemberHealth, RaftStatus},
    transport::Endpoint,
    watch::{Freshness, WatchStatus},
};

/// Number of confirmations that are kept for a slow consumer. If there are more, the last one is replaced, and the
/// watch seems less fresh than it is.
const MAX_CONFIRMATIONS: usize = 8;

/// Last progress of a stream, shared by the stream and its watches.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    endpoint: Endpoint,
    /// Health of the stream's member.
    health: watch::Receiver<MemberHealth>,
    last: Mutex<Option<ProgressResponse>>,
}

impl StreamProgress {
    pub(crate) fn new(endpoint: Endpoint, health: watch::Receiver<MemberHealth>) -> Self {
        Self {
            endpoint,
            health,
            last: Mutex::default(),
        }
    }

    /// Publishes progress. All events that it covers must have been recorded with [`FreshnessRecord::events_sent`].
    pub(crate) fn publish(&self, response: Option<ProgressResponse>) {
        *lock(&self.last) = response;
    }
}

/// The stream that carries the watch.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) progress: Arc<StreamProgress>,
    /// Number of the last progress request before the watch was created. Later requests cover the watch.
    pub(crate) created_after: u64,
    /// Id of the member, or 0.
    pub(crate) member: u64,
}

/// Why the watch has no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detachment {
    Reconnecting,
    Paused,
    Resyncing,
    Ended,
}

/// The watch is complete up to `revision`, for a consumer that has read everything up to `required`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Confirmation {
    required: i64,
    revision: i64,
    as_of: Instant,
}

#[derive(Debug)]
enum Place {
    Attached(Attachment),
    Detached { reason: Detachment, since: Instant },
}

/// The freshness of one watch, shared by its stream, its actor and its consumer.
#[derive(Debug)]
pub(crate) struct FreshnessRecord(Mutex<Record>);

#[derive(Debug)]
struct Record {
    /// Attach attempt of the watch. Calls for other attempts are ignored.
    attempt: u32,
    place: Place,
    /// Last revision of the events that a stream has sent to the watch.
    last_sent: i64,
    /// Newest confirmation that is known to hold for the consumer.
    held: Confirmation,
    /// Later ones, in the order of `required`.
    confirmations: VecDeque<Confirmation>,
    /// Number of resyncs that the consumer has not read. Until then, no later confirmation holds: after a restore from
    /// a backup, the consumer has read higher revisions than the confirmations require.
    unread_resyncs: u32,
    /// Confirmation by the last resync.
    resync: Option<Confirmation>,
}

impl FreshnessRecord {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Record {
            attempt: 0,
            place: Place::Detached {
                reason: Detachment::Reconnecting,
                since: now,
            },
            last_sent: 0,
            held: Confirmation {
                required: i64::MIN,
                revision: 0,
                as_of: now,
            },
            confirmations: VecDeque::new(),
            unread_resyncs: 0,
            resync: None,
        }))
    }

    /// Records that the watch was created for the first time and is complete up to `revision`.
    pub(crate) fn opened(&self, revision: i64) {
        self.lock().held.revision = revision;
    }

    /// Records that the watch left its stream, if it had one, and makes the next attempt or waits for it.
    pub(crate) fn detached(&self, attempt: u32, reason: Detachment, now: Instant) {
        let mut record = self.lock();
        record.keep_progress();
        record.attempt = attempt;
        let since = match record.place {
            Place::Detached {
                reason: same,
                since,
            } if same == reason => since,
            _ => now,
        };
        record.place = Place::Detached { reason, since };
    }

    /// Records that the server created the watch on a stream.
    pub(crate) fn attached(&self, attempt: u32, attachment: Attachment) {
        let mut record = self.lock();
        if record.attempt == attempt {
            record.place = Place::Attached(attachment);
        }
    }

    /// Records that the stream sends events up to `revision` to the watch, whose consumer has read everything up to
    /// `delivered`.
    pub(crate) fn events_sent(&self, attempt: u32, revision: i64, delivered: i64, now: Instant) {
        let mut record = self.lock();
        if record.attempt != attempt {
            return;
        }
        record.forget_read(delivered);
        record.keep_progress();
        record.last_sent = record.last_sent.max(revision);
        record.confirm(revision, now);
    }

    /// Records progress of this watch alone.
    pub(crate) fn progress_sent(&self, attempt: u32, revision: i64, now: Instant) {
        let mut record = self.lock();
        if record.attempt == attempt {
            record.confirm(revision, now);
        }
    }

    /// Records that the range was read at `revision`; the read began at `began`. Follows
    /// [`detached`](Self::detached).
    pub(crate) fn resynced(&self, revision: i64, began: Instant) {
        let mut record = self.lock();
        record.unread_resyncs += 1;
        record.resync = Some(Confirmation {
            required: revision,
            revision,
            as_of: began,
        });
        record.confirmations.clear();
        record.last_sent = revision;
    }

    /// Records that the consumer has read a resync.
    pub(crate) fn resync_read(&self) {
        let mut record = self.lock();
        record.unread_resyncs = record.unread_resyncs.saturating_sub(1);
        if record.unread_resyncs == 0
            && let Some(resync) = record.resync.take()
        {
            record.held = resync;
        }
    }

    /// Returns the freshness for a consumer that has read everything up to `delivered`.
    pub(crate) fn freshness(&self, delivered: i64) -> Freshness {
        let record = self.lock();
        let best = record.best(delivered, record.stream_progress());
        let as_of = record
            .confirmed_by_probe(best.revision)
            .max(Some(best.as_of));
        let status = match &record.place {
            Place::Attached(attachment) => WatchStatus::Attached {
                endpoint: attachment.progress.endpoint.as_str().to_owned(),
                member: attachment.member,
            },
            Place::Detached { reason, since } => {
                let since = since.into_std();
                match reason {
                    Detachment::Reconnecting => WatchStatus::Reconnecting { since },
                    Detachment::Paused => WatchStatus::Paused { since },
                    Detachment::Resyncing => WatchStatus::Resyncing { since },
                    Detachment::Ended => WatchStatus::Ended,
                }
            }
        };
        Freshness {
            revision: best.revision.max(delivered),
            as_of: as_of.unwrap_or(best.as_of).into_std(),
            status,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        lock(&self.0)
    }
}

impl Record {
    /// Adds a confirmation that requires all events sent so far.
    fn confirm(&mut self, revision: i64, as_of: Instant) {
        if self.confirmations.len() == MAX_CONFIRMATIONS {
            self.confirmations.pop_back();
        }
        self.confirmations.push_back(Confirmation {
            required: self.last_sent,
            revision,
            as_of,
        });
    }

    /// Removes the confirmations that hold for the consumer, except for the newest one.
    fn forget_read(&mut self, delivered: i64) {
        if self.unread_resyncs == 0 {
            self.held = self.best(delivered, None);
            self.confirmations
                .retain(|confirmation| confirmation.required > delivered);
        }
    }

    /// Keeps the progress of the stream: after the next event, it would no longer be known what it requires.
    fn keep_progress(&mut self) {
        if let Some(progress) = self.stream_progress() {
            let newest = self.confirmations.back().unwrap_or(&self.held);
            if (progress.revision, progress.as_of) > (newest.revision, newest.as_of) {
                self.confirm(progress.revision, progress.as_of);
            }
        }
    }

    fn stream_progress(&self) -> Option<Confirmation> {
        let Place::Attached(attachment) = &self.place else {
            return None;
        };
        let last = *lock(&attachment.progress.last);
        last.filter(|response| response.request > attachment.created_after)
            .map(|response| Confirmation {
                required: self.last_sent,
                revision: response.revision,
                as_of: response.requested_at,
            })
    }

    /// Returns when the last probe was sent, if the member had no revision after this one.
    fn confirmed_by_probe(&self, revision: i64) -> Option<Instant> {
        let Place::Attached(attachment) = &self.place else {
            return None;
        };
        if self.unread_resyncs > 0 {
            return None;
        }
        // Behind a proxy, the probe may have reached another member.
        let status = attachment.progress.health.borrow().status;
        let status = status.filter(|status| status.member == attachment.member);
        let is_complete = |status: &RaftStatus| (1..=revision).contains(&status.revision);
        status.filter(is_complete).map(|status| status.requested_at)
    }

    fn best(&self, delivered: i64, progress: Option<Confirmation>) -> Confirmation {
        if self.unread_resyncs > 0 {
            return self.held;
        }
        let confirmations = self.confirmations.iter().copied();
        confirmations
            .chain(progress)
            .filter(|confirmation| confirmation.required <= delivered)
            .chain([self.held])
            .max_by_key(|confirmation| (confirmation.revision, confirmation.as_of))
            .unwrap_or(self.held)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
