//! The bounded queue between a watch and its consumer.
//!
//! Small: it takes memory only for what waits in it, so ten thousand idle watches cost little. The limit counts events; a
//! batch is taken whole if there is room for its first event, so that one answer of the server is never split. A
//! queue without room makes the watch lag; the consumer says when it has read half of it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use crate::{
    api::watch::{Resynced, WatchEnd},
    error::Error,
    proto::Event,
};

/// What waits for the consumer.
#[derive(Debug)]
pub(crate) enum Queued {
    Batch(Vec<Event>),
    Progress(i64),
    Disconnected(Arc<Error>),
    Resumed,
    Lagging,
    Regressed { seen: i64, told: i64 },
    Resynced(Box<Resynced>),
    Ended(WatchEnd),
}

/// The queue of one watch.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    limit: usize,
    /// Everything up to here was handed to the consumer.
    delivered: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Queued>,
    events: usize,
    reader: Option<Waker>,
    drain_wanted: bool,
    ended: bool,
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
            delivered: AtomicI64::new(0),
        })
    }

    pub(crate) fn delivered(&self) -> i64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(crate) fn set_delivered(&self, revision: i64) {
        self.delivered.fetch_max(revision, Ordering::Relaxed);
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
        if let Queued::Batch(events) = &item {
            state.events -= events.len();
        }
        if state.items.is_empty() {
            state.items = VecDeque::new();
        }
        let drained = state.drain_wanted && state.events <= self.limit / 2;
        state.drain_wanted &= !drained;
        Poll::Ready(Taken { item, drained })
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

    /// Whether there is no room for another batch.
    pub(crate) fn is_full(&self) -> bool {
        self.0.lock().events >= self.0.limit
    }

    pub(crate) fn batch(&self, mut events: Vec<Event>) {
        // An answer with one event is decoded into room for four, and thousands may wait to be read.
        if events.capacity() / 2 >= events.len() {
            events.shrink_to_fit();
        }
        self.change(|state| {
            state.events += events.len();
            state.items.push_back(Queued::Batch(events));
        });
    }

    /// Only the newest progress is worth waiting for.
    pub(crate) fn progress(&self, revision: i64) {
        self.change(|state| match state.items.back_mut() {
            Some(Queued::Progress(older)) => *older = revision,
            _ => state.items.push_back(Queued::Progress(revision)),
        });
    }

    pub(crate) fn disconnected(&self, error: Arc<Error>) {
        self.change(|state| {
            // A resume nobody has heard of is undone: notices between two events stay one or two.
            if matches!(state.items.back(), Some(Queued::Resumed)) {
                state.items.pop_back();
            }
            if !matches!(state.items.back(), Some(Queued::Disconnected(_))) {
                state.items.push_back(Queued::Disconnected(error));
            }
        });
    }

    pub(crate) fn resumed(&self) {
        self.change(|state| {
            if !matches!(state.items.back(), Some(Queued::Resumed)) {
                state.items.push_back(Queued::Resumed);
            }
        });
    }

    pub(crate) fn lagging(&self) {
        self.change(|state| {
            if !matches!(state.items.back(), Some(Queued::Lagging)) {
                state.items.push_back(Queued::Lagging);
            }
        });
    }

    pub(crate) fn regressed(&self, seen: i64, told: i64) {
        self.change(|state| {
            if !matches!(state.items.back(), Some(Queued::Regressed { .. })) {
                state.items.push_back(Queued::Regressed { seen, told });
            }
        });
    }

    pub(crate) fn resynced(&self, resynced: Resynced) {
        self.change(|state| {
            state.items.push_back(Queued::Resynced(Box::new(resynced)));
        });
    }

    /// The last item. Whatever is said after it is not delivered.
    pub(crate) fn end(&self, end: WatchEnd) {
        self.change(|state| {
            state.items.push_back(Queued::Ended(end));
            state.ended = true;
        });
    }

    pub(crate) fn set_delivered(&self, revision: i64) {
        self.0.set_delivered(revision);
    }

    /// Has the consumer say when half of the queue is read; `false` if it is already.
    pub(crate) fn want_drain(&self) -> bool {
        let mut state = self.0.lock();
        state.drain_wanted = state.events > self.0.limit / 2;
        state.drain_wanted
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let reader = {
            let mut state = self.0.lock();
            if state.ended {
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
