//! Up to which revision a watch is complete, and when that was confirmed.
//!
//! Confirmations come from events and from progress of the stream. A confirmation holds for the consumer once the
//! consumer has read all events that the stream had sent before it. Progress for a whole stream is stored once per stream
//! ([`StreamProgress`]), not sent to each of its watches.
//!
//! etcd sends no progress while a watch of the stream waits for a revision that does not exist yet, which is the case
//! for every watch that was created or resumed after the last write. Then the probes of the member confirm the watch: if
//! the member's revision is one up to which the watch is complete, the watch was complete when the probe was sent.
//!
//! A hedged watch has one record for both legs. A confirmation by either leg holds for the watch, once the consumer has
//! read all events that either leg had sent before it.

mod leg_place;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::watch, time::Instant};

pub(crate) use leg_place::{Attachment, Detachment};

use self::leg_place::{LegPlace, Place};
use super::{leg::Leg, watch_stream::ProgressResponse};
use crate::{
    connection::{MemberHealth, RaftStatus},
    transport::Endpoint,
    watch::Freshness,
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

    /// Publishes progress. All events that it covers must have been recorded with [`LegFreshness::events_sent`].
    pub(crate) fn publish(&self, response: Option<ProgressResponse>) {
        *lock(&self.last) = response;
    }
}

/// The watch is complete up to `revision`, for a consumer that has read everything up to `required`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Confirmation {
    required: i64,
    revision: i64,
    as_of: Instant,
    /// Leg whose member confirmed it.
    leg: Leg,
}

/// The freshness of one watch, shared by its streams, its actors and its consumer.
#[derive(Debug)]
pub(crate) struct FreshnessRecord(Mutex<Record>);

#[derive(Debug)]
struct Record {
    first: LegPlace,
    /// `None` until the second leg of a hedged watch starts.
    second: Option<Box<LegPlace>>,
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
            first: LegPlace::new(now),
            second: None,
            last_sent: 0,
            held: Confirmation {
                required: i64::MIN,
                revision: 0,
                as_of: now,
                leg: Leg::First,
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

    /// Records that the range was read at `revision`; the read began at `began`. Follows the detachment of the first
    /// leg.
    pub(crate) fn resynced(&self, revision: i64, began: Instant) {
        self.lock().resynced(revision, began);
    }

    /// Like [`resynced`](Self::resynced), for a cluster that was restored from a backup: events and progress that the
    /// second leg sends of the replaced history are ignored until that leg attaches again.
    pub(crate) fn restored(&self, revision: i64, began: Instant) {
        let mut record = self.lock();
        if let Some(second) = &mut record.second {
            second.detach(None, Detachment::Reconnecting, began);
        }
        record.resynced(revision, began);
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
        let (as_of, leg) = record.confirmed_by_probes(best.revision).fold(
            (best.as_of, best.leg),
            |newest, probe| {
                if probe.0 > newest.0 { probe } else { newest }
            },
        );
        Freshness {
            revision: best.revision.max(delivered),
            as_of: as_of.into_std(),
            status: record.place(leg).status(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        lock(&self.0)
    }
}

/// One leg's access to the freshness of its watch.
#[derive(Debug, Clone)]
pub(crate) struct LegFreshness {
    record: Arc<FreshnessRecord>,
    leg: Leg,
}

impl LegFreshness {
    pub(crate) fn of_first_leg(record: Arc<FreshnessRecord>) -> Self {
        Self {
            record,
            leg: Leg::First,
        }
    }

    /// Returns the access of the second leg of the same watch.
    pub(crate) fn of_second_leg(&self) -> Self {
        Self {
            record: self.record.clone(),
            leg: Leg::Second,
        }
    }

    /// Returns the record of the watch.
    pub(crate) fn of_watch(&self) -> &FreshnessRecord {
        &self.record
    }

    /// Records that the leg left its stream, if it had one, and makes the next attempt or waits for it.
    pub(crate) fn detached(&self, attempt: u32, reason: Detachment, now: Instant) {
        let mut record = self.record.lock();
        record.keep_progress();
        let leg = match self.leg {
            Leg::First => &mut record.first,
            Leg::Second => record
                .second
                .get_or_insert_with(|| Box::new(LegPlace::new(now))),
        };
        leg.detach(Some(attempt), reason, now);
    }

    /// Records that the server created the watch on a stream.
    pub(crate) fn attached(&self, attempt: u32, attachment: Attachment) {
        let mut record = self.record.lock();
        if let Some(leg) = record.leg(self.leg, attempt) {
            leg.place = Place::Attached(attachment);
        }
    }

    /// Records that the stream sends events up to `revision` to the leg. The consumer of the watch has read everything
    /// up to `delivered`.
    pub(crate) fn events_sent(&self, attempt: u32, revision: i64, delivered: i64, now: Instant) {
        let mut record = self.record.lock();
        if record.leg(self.leg, attempt).is_none() {
            return;
        }
        record.forget_read(delivered);
        record.keep_progress();
        // Events that the other leg has sent before confirm nothing new.
        if revision > record.last_sent {
            record.last_sent = revision;
            record.confirm(revision, now, self.leg);
        }
    }

    /// Records progress of this leg alone.
    pub(crate) fn progress_sent(&self, attempt: u32, revision: i64, now: Instant) {
        let mut record = self.record.lock();
        if record.leg(self.leg, attempt).is_some() {
            record.confirm(revision, now, self.leg);
        }
    }
}

impl Record {
    fn resynced(&mut self, revision: i64, began: Instant) {
        self.unread_resyncs += 1;
        self.resync = Some(Confirmation {
            required: revision,
            revision,
            as_of: began,
            leg: Leg::First,
        });
        self.confirmations.clear();
        self.last_sent = revision;
    }

    /// Returns a leg, if this is its current attempt.
    fn leg(&mut self, leg: Leg, attempt: u32) -> Option<&mut LegPlace> {
        let place = match leg {
            Leg::First => Some(&mut self.first),
            Leg::Second => self.second.as_deref_mut(),
        };
        place.filter(|place| place.attempt == Some(attempt))
    }

    /// Returns the legs that are on a stream.
    fn attachments(&self) -> impl Iterator<Item = (Leg, &Attachment)> {
        let second = self.second.as_deref();
        [(Leg::First, Some(&self.first)), (Leg::Second, second)]
            .into_iter()
            .filter_map(|(leg, place)| Some((leg, place?.attachment()?)))
    }

    /// Returns the place of the watch, which `fresher` has confirmed last.
    fn place(&self, fresher: Leg) -> &Place {
        let first = &self.first.place;
        self.second.as_ref().map_or(first, |second| {
            Place::of_both(first, &second.place, fresher == Leg::First)
        })
    }

    /// Adds a confirmation that requires all events sent so far.
    fn confirm(&mut self, revision: i64, as_of: Instant, leg: Leg) {
        if self.confirmations.len() == MAX_CONFIRMATIONS {
            self.confirmations.pop_back();
        }
        self.confirmations.push_back(Confirmation {
            required: self.last_sent,
            revision,
            as_of,
            leg,
        });
    }

    /// Removes the confirmations that hold for the consumer, except for the newest one.
    fn forget_read(&mut self, delivered: i64) {
        if self.unread_resyncs == 0 {
            self.held = self.best(delivered, []);
            self.confirmations
                .retain(|confirmation| confirmation.required > delivered);
        }
    }

    /// Keeps the progress of the streams: after the next event, it would no longer be known what it requires.
    fn keep_progress(&mut self) {
        for progress in self.stream_progress().into_iter().flatten() {
            let newest = self.confirmations.back().unwrap_or(&self.held);
            if (progress.revision, progress.as_of) > (newest.revision, newest.as_of) {
                self.confirm(progress.revision, progress.as_of, progress.leg);
            }
        }
    }

    /// Returns the progress of the stream of each leg.
    fn stream_progress(&self) -> [Option<Confirmation>; 2] {
        let mut attachments = self.attachments();
        std::array::from_fn(|_| {
            let (leg, attachment) = attachments.next()?;
            let last = *lock(&attachment.progress.last);
            last.filter(|response| response.request > attachment.created_after)
                .map(|response| Confirmation {
                    required: self.last_sent,
                    revision: response.revision,
                    as_of: response.requested_at,
                    leg,
                })
        })
    }

    /// Returns when the last probe of each member was sent, if the member had no revision after this one.
    fn confirmed_by_probes(&self, revision: i64) -> impl Iterator<Item = (Instant, Leg)> {
        let attachments = self.attachments().filter(|_| self.unread_resyncs == 0);
        attachments.filter_map(move |(leg, attachment)| {
            // Behind a proxy, the probe may have reached another member.
            let status = attachment.progress.health.borrow().status;
            let status = status.filter(|status| status.member == attachment.member);
            let is_complete = |status: &RaftStatus| (1..=revision).contains(&status.revision);
            let status = status.filter(is_complete)?;
            Some((status.requested_at, leg))
        })
    }

    fn best(
        &self,
        delivered: i64,
        progress: impl IntoIterator<Item = Option<Confirmation>>,
    ) -> Confirmation {
        if self.unread_resyncs > 0 {
            return self.held;
        }
        let confirmations = self.confirmations.iter().copied();
        confirmations
            .chain(progress.into_iter().flatten())
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
