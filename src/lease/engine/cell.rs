//! What a lease's actor and its handle share: the deadline, who listens, and how it ended.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::lease::{
    LeaseLost,
    events::{EventQueue, LeaseEvent, LeaseEvents},
};

/// One lease, as seen from any thread.
pub(crate) struct LeaseCell {
    id: i64,
    origin: Instant,
    /// Milliseconds after the origin.
    deadline: AtomicU64,
    ttl: AtomicU64,
    revoke_on_drop: AtomicBool,
    audience: Mutex<Audience>,
}

#[derive(Default)]
struct Audience {
    queues: Vec<Arc<EventQueue>>,
    lost: Option<LeaseLost>,
    closed: bool,
}

impl LeaseCell {
    pub(crate) fn new(id: i64, ttl: Duration, deadline: Instant) -> Self {
        let origin = Instant::now();
        let cell = Self {
            id,
            origin,
            deadline: AtomicU64::new(0),
            ttl: AtomicU64::new(0),
            revoke_on_drop: AtomicBool::new(false),
            audience: Mutex::default(),
        };
        cell.note(ttl, deadline);
        cell
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl.load(Ordering::Relaxed))
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.origin + Duration::from_millis(self.deadline.load(Ordering::Relaxed))
    }

    pub(crate) fn set_revoke_on_drop(&self) {
        self.revoke_on_drop.store(true, Ordering::SeqCst);
    }

    pub(crate) fn revoke_on_drop(&self) -> bool {
        self.revoke_on_drop.load(Ordering::SeqCst)
    }

    /// The server has it until then.
    pub(crate) fn note(&self, ttl: Duration, deadline: Instant) {
        let millis = deadline.saturating_duration_since(self.origin).as_millis();
        self.ttl.store(ttl.as_secs(), Ordering::Relaxed);
        self.deadline
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Tells everybody who listens.
    pub(crate) fn tell(&self, event: LeaseEvent) {
        let mut audience = self.lock();
        if audience.lost.is_some() || audience.closed {
            return;
        }
        if let LeaseEvent::Lost(reason) = event {
            audience.lost = Some(reason);
        }
        // Only this list has it: its reader is gone.
        audience.queues.retain(|queue| Arc::strong_count(queue) > 1);
        for queue in &audience.queues {
            queue.push(event);
        }
    }

    /// Nothing will be told any more.
    pub(crate) fn close(&self) {
        let mut audience = self.lock();
        audience.closed = true;
        for queue in audience.queues.drain(..) {
            queue.close();
        }
    }

    /// What is told from now on; of a lost lease, that it is lost.
    pub(crate) fn events(&self) -> LeaseEvents {
        let queue = Arc::new(EventQueue::default());
        let mut audience = self.lock();
        if let Some(reason) = audience.lost {
            queue.push(LeaseEvent::Lost(reason));
        } else if audience.closed {
            queue.close();
        } else {
            audience.queues.push(queue.clone());
        }
        LeaseEvents::new(queue)
    }

    pub(crate) fn lost(&self) -> Option<LeaseLost> {
        self.lock().lost
    }

    fn lock(&self) -> MutexGuard<'_, Audience> {
        self.audience.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease on its way to the keeper. If it does not arrive, the client is shut down, and the lease lost.
pub(crate) struct OnTheWay(Option<Arc<LeaseCell>>);

impl OnTheWay {
    pub(crate) fn new(cell: Arc<LeaseCell>) -> Self {
        Self(Some(cell))
    }

    /// It has arrived.
    pub(crate) fn take(&mut self) -> Option<Arc<LeaseCell>> {
        self.0.take()
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            cell.tell(LeaseEvent::Lost(LeaseLost::Shutdown));
        }
    }
}
