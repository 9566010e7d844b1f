//! What the owner of a lease is told, as a stream or as messages.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use actix::Message;
use tokio_stream::Stream;

/// A reader that is further behind loses the oldest events; never the last.
const KEPT: usize = 16;

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseLost {
    /// The server reported after the deadline that the lease is gone.
    Expired,
    /// The server reported before the deadline that the lease is gone. It was revoked; or a leader that was suspended for
    /// longer than the TTL resumed and let the lease expire, which etcd does not always prevent.
    Revoked,
    /// No member confirmed the lease until the time to give up. See [`Grant::give_up_after`](super::Grant::give_up_after).
    NeverConfirmed,
    /// This user may not keep the lease alive.
    PermissionDenied,
    /// The client was shut down.
    Shutdown,
}

impl LeaseLost {
    /// Returns why a lease is gone from the server. Before its deadline it cannot have expired.
    pub(crate) fn gone(before_deadline: bool) -> Self {
        if before_deadline {
            Self::Revoked
        } else {
            Self::Expired
        }
    }
}

/// What happened to a kept lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// The server has it until that time, unless someone revokes it.
    Renewed {
        /// On this process's monotonic clock.
        deadline: Instant,
    },
    /// The deadline has passed without an answer. The server may still have it, and is asked on.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// It is gone. Nothing follows.
    Lost(LeaseLost),
}

/// The same as a message to an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub struct LeaseMessage {
    /// Which lease.
    pub lease: i64,
    /// What happened.
    pub event: LeaseEvent,
}

/// The events of one lease, from when the stream was made. Ends after [`LeaseEvent::Lost`], or when the lease's
/// handle is gone. A reader that is far behind misses the oldest.
pub struct LeaseEvents(Arc<EventQueue>);

impl Stream for LeaseEvents {
    type Item = LeaseEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LeaseEvent>> {
        let mut state = self.0.lock();
        match state.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.closed => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for LeaseEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseEvents").finish_non_exhaustive()
    }
}

impl LeaseEvents {
    pub(crate) fn new(queue: Arc<EventQueue>) -> Self {
        Self(queue)
    }
}

/// Between the lease's actor and one reader. Bounded: renewals nobody reads make room for each other.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    events: VecDeque<LeaseEvent>,
    closed: bool,
    waker: Option<Waker>,
}

impl EventQueue {
    pub(crate) fn push(&self, event: LeaseEvent) {
        let waker = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            let renewal = |event: &LeaseEvent| matches!(event, LeaseEvent::Renewed { .. });
            if renewal(&event) && state.events.back().is_some_and(renewal) {
                state.events.pop_back();
            } else if state.events.len() >= KEPT {
                state.events.pop_front();
            }
            state.events.push_back(event);
            state.closed = matches!(event, LeaseEvent::Lost(_));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.closed = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    fn read(queue: &Arc<EventQueue>) -> Vec<LeaseEvent> {
        let mut events = LeaseEvents::new(queue.clone());
        let mut read = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(event)) = Pin::new(&mut events).poll_next(&mut cx) {
            read.push(event);
        }
        read
    }

    #[test]
    fn unread_renewals_make_room_for_each_other() {
        let queue = Arc::new(EventQueue::default());
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        queue.push(LeaseEvent::Renewed { deadline: now });
        queue.push(LeaseEvent::Renewed { deadline: later });
        assert_eq!(read(&queue), [LeaseEvent::Renewed { deadline: later }]);
    }

    #[test]
    fn the_end_is_never_lost() {
        let queue = Arc::new(EventQueue::default());
        let deadline = Instant::now();
        for _ in 0..100 {
            queue.push(LeaseEvent::Renewed { deadline });
            queue.push(LeaseEvent::AtRisk { deadline });
        }
        queue.push(LeaseEvent::Lost(LeaseLost::Expired));
        queue.push(LeaseEvent::Renewed { deadline });
        let read = read(&queue);
        assert_eq!(read.len(), KEPT);
        assert_eq!(read.last(), Some(&LeaseEvent::Lost(LeaseLost::Expired)));
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_an_event_and_by_the_end() {
        let queue = Arc::new(EventQueue::default());
        let mut events = LeaseEvents::new(queue.clone());
        let reader = tokio::spawn(async move { (events.next().await, events.next().await) });
        tokio::task::yield_now().await;
        let event = LeaseEvent::AtRisk {
            deadline: Instant::now(),
        };
        queue.push(event);
        tokio::task::yield_now().await;
        queue.close();
        assert_eq!(reader.await.unwrap(), (Some(event), None));
    }
}
