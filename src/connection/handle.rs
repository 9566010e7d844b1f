//! One generation of a connection in the hands of its callers.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Message, WeakAddr};
use tokio::{sync::watch, time::Instant};

use super::{ClusterLeft, EndpointId, Health, Suspect, actor::ConnectionActor};
use crate::transport::{Endpoint, channel::Channel};

/// One generation of a connection, as callers use it.
pub(crate) struct Connection {
    pub(crate) id: EndpointId,
    pub(crate) endpoint: Endpoint,
    pub(crate) generation: u64,
    pub(crate) channel: Channel,
    actor: WeakAddr<ConnectionActor>,
    pub(super) health: watch::Sender<Health>,
    suspicions: AtomicUsize,
    /// Streams that live on this connection: while there are any, it is probed now and then.
    standing: AtomicUsize,
    term: ObservedTerm,
}

impl Connection {
    pub(super) fn new(
        id: EndpointId,
        endpoint: Endpoint,
        generation: u64,
        channel: Channel,
        actor: WeakAddr<ConnectionActor>,
        health: Health,
    ) -> Self {
        Self {
            id,
            endpoint,
            generation,
            channel,
            actor,
            health: watch::Sender::new(health),
            suspicions: AtomicUsize::new(0),
            standing: AtomicUsize::new(0),
            term: ObservedTerm::new(),
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Says that a call is slow. The member is probed for as long as the guard lives.
    pub(crate) fn suspect(self: &Arc<Self>) -> Suspicion {
        self.suspicions.fetch_add(1, Ordering::Relaxed);
        self.tell(Suspect {
            generation: self.generation,
        });
        Suspicion(self.clone())
    }

    /// Says that a member's own answer casts doubt on it ("no leader").
    pub(crate) fn doubt(&self) {
        self.tell(Suspect {
            generation: self.generation,
        });
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.suspicions.load(Ordering::Relaxed) > 0
    }

    /// Counts a stream that lives on this connection.
    pub(crate) fn stand(self: &Arc<Self>) -> Standing {
        self.standing.fetch_add(1, Ordering::Relaxed);
        Standing(self.clone())
    }

    pub(super) fn has_standing(&self) -> bool {
        self.standing.load(Ordering::Relaxed) > 0
    }

    /// The raft term in an answer's header.
    pub(crate) fn observe_term(&self, term: u64) {
        self.term.observe(term);
    }

    /// Whether answers have come under a later term than that one.
    pub(crate) fn term_is_over(&self, term: Option<u64>) -> bool {
        term.is_some_and(|term| self.term.newest() > term)
    }

    /// The term of the last answers. Taken when a request is sent, judged only if it gets slow.
    pub(crate) fn term_mark(&self) -> TermMark {
        self.term.mark()
    }

    /// Says that the member has answered for another cluster.
    pub(crate) fn disown(&self, cluster: u64) {
        self.tell(ClusterLeft {
            generation: self.generation,
            cluster,
        });
    }

    fn tell<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        ConnectionActor: actix::Handler<M>,
    {
        if let Some(actor) = self.actor.upgrade() {
            actor.do_send(message);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Connection({}, generation {})",
            self.endpoint, self.generation
        )
    }
}

/// A call that has waited too long; see [`Connection::suspect`].
pub(crate) struct Suspicion(Arc<Connection>);

impl Drop for Suspicion {
    fn drop(&mut self) {
        self.0.suspicions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that lives on a connection; see [`Connection::stand`].
pub(crate) struct Standing(Arc<Connection>);

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.standing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The newest raft term seen in answers, and when: cheap enough to note at every answer.
struct ObservedTerm {
    origin: Instant,
    term: AtomicU64,
    at_millis: AtomicU64,
}

impl ObservedTerm {
    fn new() -> Self {
        Self {
            origin: Instant::now(),
            term: AtomicU64::new(0),
            at_millis: AtomicU64::new(0),
        }
    }

    fn observe(&self, term: u64) {
        let at = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.term.store(term, Ordering::Relaxed);
        self.at_millis.store(at, Ordering::Relaxed);
    }

    fn newest(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    fn mark(&self) -> TermMark {
        TermMark {
            term: self.term.load(Ordering::Relaxed),
            observed: self.origin + Duration::from_millis(self.at_millis.load(Ordering::Relaxed)),
        }
    }
}

/// A raft term and when it was last seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TermMark {
    term: u64,
    observed: Instant,
}

impl TermMark {
    /// An older term says nothing of a request that was sent later.
    const RECENT: Duration = Duration::from_secs(2);

    /// The term a request sent then went out under, where it is known.
    pub(crate) fn at(self, sent: Instant) -> Option<u64> {
        let known = self.term != 0 && sent.saturating_duration_since(self.observed) < Self::RECENT;
        known.then_some(self.term)
    }
}
