//! One endpoint, one supervised connection.
//!
//! A [`ConnectionActor`](actor::ConnectionActor) dials, drives and watches over the connection to one endpoint. It can
//! be told [`Connect`], [`Wanted`], [`Suspect`], [`Probe`], [`Drain`]; it hears [`Dialled`], [`Probed`] and
//! [`ConnectionLost`] from its own tasks; and it tells the balancer [`ConnectivityChanged`].
//!
//! Every connection has a generation. What is said of an older one is ignored, so a late message can never take a
//! working connection away. A connection is ready only when an RPC has been answered on it: the kernel of a
//! frozen process still accepts TCP.
//!
//! What it decides is pure code: [`state`] (the states and the reconnect delay), [`verdict`] (what a probe's answer
//! means).

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

use crate::{
    error::Error,
    transport::{Endpoint, channel::Channel},
};

pub(crate) mod actor;
pub(crate) mod probe;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod verdict;

pub(crate) use verdict::{Health, Sighting, Verdict};

/// Names an endpoint of a client for as long as the client has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EndpointId(pub(crate) u64);

/// What is known of the connection to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectivityState {
    /// No connection, and none is wanted now.
    Idle,
    /// A connection is being made.
    Connecting,
    /// The member answers and has a leader: it gets requests.
    Ready,
    /// The member answers, but it is cut off from the leader or there is none: it gets serializable reads only.
    NoLeader,
    /// The member cannot be reached, does not answer or does not serve; it is tried again soon.
    TransientFailure,
    /// The endpoint was removed or the client shut down.
    Shutdown,
}

impl fmt::Display for ConnectivityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::NoLeader => "without leader",
            Self::TransientFailure => "failing",
            Self::Shutdown => "shut down",
        })
    }
}

/// One generation of a connection, as callers use it.
pub(crate) struct Connection {
    pub(crate) id: EndpointId,
    pub(crate) endpoint: Endpoint,
    pub(crate) generation: u64,
    pub(crate) channel: Channel,
    actor: WeakAddr<actor::ConnectionActor>,
    health: watch::Sender<Health>,
    suspicions: AtomicUsize,
    /// Streams that live on this connection: while there are any, it is probed now and then.
    standing: AtomicUsize,
    term: ObservedTerm,
}

impl Connection {
    fn new(
        id: EndpointId,
        endpoint: Endpoint,
        generation: u64,
        channel: Channel,
        actor: WeakAddr<actor::ConnectionActor>,
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

    fn is_suspected(&self) -> bool {
        self.suspicions.load(Ordering::Relaxed) > 0
    }

    /// Counts a stream that lives on this connection.
    pub(crate) fn stand(self: &Arc<Self>) -> Standing {
        self.standing.fetch_add(1, Ordering::Relaxed);
        Standing(self.clone())
    }

    fn has_standing(&self) -> bool {
        self.standing.load(Ordering::Relaxed) > 0
    }

    /// The raft term in an answer's header.
    pub(crate) fn observe_term(&self, term: u64) {
        self.term.observe(term);
    }

    /// The term of the last answers. Taken when a request is sent, judged only if it gets slow.
    pub(crate) fn term_mark(&self) -> TermMark {
        self.term.mark()
    }

    fn tell<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        actor::ConnectionActor: actix::Handler<M>,
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

/// Make a connection if there is none.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Connect;

/// Calls wait for any member: try more often for a while.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Wanted;

/// Close the connection gracefully, and make no other until told to.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Rest;

/// A call on this generation is slow, or was told that there is no leader.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Suspect {
    pub(crate) generation: u64,
}

/// Ask the member how it is: another one is under suspicion, and they are compared.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Probe;

/// The endpoint is not wanted any more: what is in flight may finish, then the connection is closed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Drain;

/// A connection attempt ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Dialled {
    pub(crate) generation: u64,
    pub(crate) result: Result<probe::FirstContact, Error>,
}

/// A probe ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Probed {
    pub(crate) generation: u64,
    pub(crate) answer: probe::Answer,
}

/// The connection ended by itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectionLost {
    pub(crate) generation: u64,
    pub(crate) reason: String,
}

/// An endpoint's state changed. Told to the balancer.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectivityChanged {
    pub(crate) id: EndpointId,
    pub(crate) state: ConnectivityState,
    /// The connection to use, where the state has one.
    pub(crate) connection: Option<Arc<Connection>>,
    /// Why it is not ready.
    pub(crate) error: Option<Error>,
}

/// A member is under suspicion. Told to the balancer, which has the others probed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Suspected {
    pub(crate) id: EndpointId,
}
