//! Events of a lease, as a stream or as messages.

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

/// Maximum number of unread events per reader. The oldest are dropped first.
const QUEUE_CAPACITY: usize = 16;

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseLost {
    /// The server reported after the deadline that the lease does not exist.
    Expired,
    /// The server reported before the deadline that the lease does not exist. It was revoked, or it expired too early:
    /// etcd does not always prevent that after its leader was suspended for longer than the TTL.
    Revoked,
    /// No member confirmed the lease until the time to give up. See
    /// [`Grant::give_up_after`](super::Grant::give_up_after).
    NeverConfirmed,
    /// This user may not keep the lease alive.
    PermissionDenied,
    /// The client follows another cluster, see
    /// [`follow_cluster_change`](crate::ClientBuilder::follow_cluster_change). A lease of the same id there is another
    /// lease.
    ClusterChanged,
    /// The lease was adopted by its id, see [`Client::lease_from`](crate::Client::lease_from), and another handle of this
    /// client keeps it alive.
    TakenOver,
    /// The client was shut down.
    Shutdown,
}

impl LeaseLost {
    /// Returns the reason for a lease that no longer exists on the server: before its deadline it cannot have expired.
    pub(crate) fn revoked_or_expired(before_deadline: bool) -> Self {
        if before_deadline {
            Self::Revoked
        } else {
            Self::Expired
        }
    }
}

/// An event of a kept lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEvent {
    /// The lease was renewed.
    Renewed {
        /// Time until which the server has the lease unless it is revoked, on the monotonic clock of this process.
        deadline: Instant,
    },
    /// The deadline has passed without a response. The server may still have the lease; keepalives continue.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// The lease was renewed after it was at risk: it is certain again.
    Recovered {
        /// The new deadline, as in [`Renewed`](Self::Renewed).
        deadline: Instant,
    },
    /// The lease is lost. This is the last event.
    Lost(LeaseLost),
}

/// A [`LeaseEvent`] as a message to an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub struct LeaseMessage {
    /// Id of the lease.
    pub lease: i64,
    /// The event.
    pub event: LeaseEvent,
}

/// Stream of the events of one lease, starting when the stream is created. Ends after [`LeaseEvent::Lost`] or when the
/// lease's handle is dropped. A slow reader misses the oldest events, never the last one.
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

/// Bounded queue to one reader. A new renewal replaces an unread one.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(Mutex<EventQueueState>);

#[derive(Debug, Default)]
struct EventQueueState {
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
            let is_renewal = |event: &LeaseEvent| matches!(event, LeaseEvent::Renewed { .. });
            if is_renewal(&event) && state.events.back().is_some_and(is_renewal) {
                state.events.pop_back();
            } else if state.events.len() >= QUEUE_CAPACITY {
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

    fn lock(&self) -> MutexGuard<'_, EventQueueState> {
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
    fn new_renewal_replaces_unread_renewal() {
        let queue = Arc::new(EventQueue::default());
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        queue.push(LeaseEvent::Renewed { deadline: now });
        queue.push(LeaseEvent::Renewed { deadline: later });
        assert_eq!(read(&queue), [LeaseEvent::Renewed { deadline: later }]);
    }

    #[test]
    fn full_queue_keeps_last_event() {
        let queue = Arc::new(EventQueue::default());
        let deadline = Instant::now();
        for _ in 0..100 {
            queue.push(LeaseEvent::Renewed { deadline });
            queue.push(LeaseEvent::AtRisk { deadline });
        }
        queue.push(LeaseEvent::Lost(LeaseLost::Expired));
        queue.push(LeaseEvent::Renewed { deadline });
        let read = read(&queue);
        assert_eq!(read.len(), QUEUE_CAPACITY);
        assert_eq!(read.last(), Some(&LeaseEvent::Lost(LeaseLost::Expired)));
    }

    #[tokio::test]
    async fn waiting_reader_is_woken_by_event_and_close() {
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
