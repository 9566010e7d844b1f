//! The bounded queue between a watch and its consumer.
//!
//! Small: it takes memory only for what waits in it, so ten thousand idle watches cost little. The limit counts events; a
//! batch is taken whole if there is room for its first event, so that one answer of the server is never split. A
//! queue without room makes the watch lag; the consumer says when it has read half of it. Notices are not counted, but
//! between two things that are there is at most one of each kind.
//!
//! A server can send faster than anybody reads. So the stream waits for queues that are nearly full, but only for
//! consumers that read at a good pace: others on the stream wait, too. A slower one is left to lag. However large a queue
//! is, it is never waited for longer than for [`MARGIN`] events; and many are waited for at the same time.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use crate::{
    error::Error,
    proto::Event,
    watch::{Resynced, WatchEnd},
};

/// How long the stream waits for a consumer to read an event: 100,000 a second are a good pace.
const PACE: Duration = Duration::from_micros(10);
/// The clock's own steps are a millisecond.
const SHORTEST_WAIT: Duration = Duration::from_millis(2);
/// The most room that is kept free in a queue, and the most that is read while the stream waits.
const MARGIN: usize = 2048;

/// What waits for the consumer.
#[derive(Debug)]
pub(crate) enum Queued {
    Batch(Vec<Event>),
    Progress(i64),
    Disconnected(Arc<Error>),
    Resumed,
    Paused,
    Regressed { seen: i64, told: i64 },
    Resynced(Box<Resynced>),
    Ended(WatchEnd),
}

impl Queued {
    /// For how many events it counts.
    fn weight(&self) -> usize {
        match self {
            Self::Batch(events) => events.len(),
            Self::Resynced(resynced) => {
                let changes = resynced.created.len() + resynced.changed.len();
                (changes + resynced.deleted.len()).max(1)
            }
            _ => 0,
        }
    }
}

/// The queue of one watch.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    limit: usize,
    /// Events in the queue, and what counts as much; changed under the lock.
    waiting: AtomicUsize,
    /// Everything up to here was handed to the consumer.
    delivered: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Queued>,
    reader: Option<Waker>,
    /// The stream, while it waits for room.
    stream: Option<Waker>,
    /// The stream has waited in vain.
    too_slow: bool,
    drain_wanted: bool,
    ended: Option<Ending>,
}

/// How the watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With the client.
    Shutdown,
    /// For a reason of its own.
    Alone,
}

/// What the consumer found.
pub(crate) struct Taken {
    pub(crate) item: Queued,
    /// The watch lags and there is room again: tell it.
    pub(crate) drained: bool,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            limit: limit.max(1),
            waiting: AtomicUsize::new(0),
            delivered: AtomicI64::new(0),
        })
    }

    pub(crate) fn delivered(&self) -> i64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Said by one at a time: by the watch when it is created, then by its only reader.
    pub(crate) fn set_delivered(&self, revision: i64) {
        if revision > self.delivered() {
            self.delivered.store(revision, Ordering::Relaxed);
        }
    }

    /// Whether the watch has ended, though its last item may not be read yet.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.lock().ended
    }

    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Taken> {
        let mut state = self.lock();
        let Some(item) = state.items.pop_front() else {
            if !state
                .reader
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                state.reader = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        self.waiting.fetch_sub(item.weight(), Ordering::Relaxed);
        if state.items.is_empty() {
            state.items = VecDeque::new();
        }
        let drained = state.drain_wanted && self.is_roomy();
        state.drain_wanted &= !drained;
        if self.is_relieved() {
            state.too_slow = false;
            let stream = state.stream.take();
            drop(state);
            if let Some(stream) = stream {
                stream.wake();
            }
        }
        Poll::Ready(Taken { item, drained })
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn is_roomy(&self) -> bool {
        self.waiting() <= self.limit / 2
    }

    /// Whether so many more events leave little room: the stream had better ask [`Self::relieved`].
    pub(crate) fn is_crowded_by(&self, more: usize) -> bool {
        self.waiting() + more > (self.limit / 4 * 3).max(self.limit.saturating_sub(MARGIN))
    }

    fn is_relieved(&self) -> bool {
        self.waiting() <= (self.limit / 2).max(self.limit.saturating_sub(2 * MARGIN))
    }

    /// If there is little room, waits until there is more; not for long, counted from `since`, and not again for a
    /// consumer that was waited for in vain and has not caught up since.
    pub(crate) async fn relieved(&self, since: Instant) {
        if !self.is_crowded_by(0) {
            return;
        }
        let events = u32::try_from((self.limit / 4).min(MARGIN)).unwrap_or(u32::MAX);
        let patience = PACE.saturating_mul(events).max(SHORTEST_WAIT);
        let relieved = timeout_at(since + patience, poll_fn(|cx| self.poll_relieved(cx))).await;
        if relieved.is_err() {
            let mut state = self.lock();
            state.stream = None;
            state.too_slow = !self.is_relieved();
        }
    }

    fn poll_relieved(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.too_slow || state.ended.is_some() || self.is_relieved() {
            return Poll::Ready(());
        }
        state.stream = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watch's end of its queue. Dropped without an end, it says that the client is gone.
#[derive(Debug)]
pub(crate) struct Feed(Arc<Queue>);

impl Feed {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self(queue)
    }

    pub(crate) fn queue(&self) -> Arc<Queue> {
        self.0.clone()
    }

    /// Whether there is no room for another batch.
    pub(crate) fn is_full(&self) -> bool {
        self.0.waiting() >= self.0.limit
    }

    pub(crate) fn batch(&self, mut events: Vec<Event>) {
        // A list may have room for more than it has, and thousands may wait to be read.
        if events.capacity() / 2 >= events.len() {
            events.shrink_to_fit();
        }
        self.counted(Queued::Batch(events));
    }

    /// Only the newest progress is worth waiting for.
    pub(crate) fn progress(&self, revision: i64) {
        self.notice(Queued::Progress(revision), |older| {
            matches!(older, Queued::Progress(_))
        });
    }

    /// A resume nobody has heard of is undone.
    pub(crate) fn disconnected(&self, error: Arc<Error>) {
        self.notice(Queued::Disconnected(error), |older| {
            matches!(older, Queued::Disconnected(_) | Queued::Resumed)
        });
    }

    pub(crate) fn resumed(&self) {
        self.notice(Queued::Resumed, |older| matches!(older, Queued::Resumed));
    }

    pub(crate) fn lagging(&self) {
        self.notice(Queued::Paused, |older| {
            matches!(older, Queued::Paused | Queued::Resumed)
        });
    }

    pub(crate) fn regressed(&self, seen: i64, told: i64) {
        self.notice(Queued::Regressed { seen, told }, |older| {
            matches!(older, Queued::Regressed { .. })
        });
    }

    /// It counts as many as it tells of.
    pub(crate) fn resynced(&self, resynced: Resynced) {
        self.counted(Queued::Resynced(Box::new(resynced)));
    }

    fn counted(&self, item: Queued) {
        self.change(|state| {
            self.0.waiting.fetch_add(item.weight(), Ordering::Relaxed);
            state.items.push_back(item);
        });
    }

    /// Queues what is not counted, in the place of what it makes `outdated` since the last that is: so there is
    /// little of it, however often a watch comes and goes while nobody reads.
    fn notice(&self, item: Queued, outdated: impl Fn(&Queued) -> bool) {
        self.change(|state| {
            let counted = state.items.iter().rposition(|item| item.weight() > 0);
            let first = counted.map_or(0, |counted| counted + 1);
            for index in (first..state.items.len()).rev() {
                if outdated(&state.items[index]) {
                    state.items.remove(index);
                }
            }
            state.items.push_back(item);
        });
    }

    /// The last item. Whatever is said after it is not delivered, and nobody waits for room any more.
    pub(crate) fn end(&self, end: WatchEnd) {
        let mut stream = None;
        let ending = match end {
            WatchEnd::Shutdown => Ending::Shutdown,
            _ => Ending::Alone,
        };
        self.change(|state| {
            state.items.push_back(Queued::Ended(end));
            state.ended = Some(ending);
            stream = state.stream.take();
        });
        if let Some(stream) = stream {
            stream.wake();
        }
    }

    pub(crate) fn set_delivered(&self, revision: i64) {
        self.0.set_delivered(revision);
    }

    /// Has the consumer say when half of the queue is read; `false` if it is already.
    pub(crate) fn want_drain(&self) -> bool {
        let mut state = self.0.lock();
        state.drain_wanted = !self.0.is_roomy();
        state.drain_wanted
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let reader = {
            let mut state = self.0.lock();
            if state.ended.is_some() {
                return;
            }
            change(&mut state);
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end(WatchEnd::Shutdown);
    }
}

#[cfg(test)]
mod tests;
