//! One generation of a connection, used by callers.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Handler, Message, WeakAddr};
use tokio::{sync::watch, time::Instant};

use super::{
    ConnectionActor, EndpointId, LinkTiming, MemberHealth,
    messages::{ForeignClusterDetected, Probe, StreamOpened, Suspect},
    raft_term::{ObservedTerm, TermMark},
    token::Token,
    token_refusals::{RefusalDecision, TokenRefusals},
};
use crate::transport::{Endpoint, channel::Channel};

/// One generation of a connection. Callers on any thread send requests through its channel.
pub(crate) struct Connection {
    pub(crate) id: EndpointId,
    pub(crate) endpoint: Endpoint,
    pub(crate) generation: u64,
    pub(crate) channel: Channel,
    actor: WeakAddr<ConnectionActor>,
    pub(super) health: watch::Sender<MemberHealth>,
    /// Number of [`SuspicionGuard`]s.
    suspicions: AtomicUsize,
    /// Number of [`StreamRegistration`]s.
    streams: AtomicUsize,
    term: ObservedTerm,
    /// How long to wait for responses.
    pub(crate) timing: LinkTiming,
    token_refusals: TokenRefusals,
    /// Whether the member responded to a request with a token.
    responded_to_token: AtomicBool,
    /// Whether a probe was requested because the member has not responded to a token.
    token_probe_requested: AtomicBool,
}

impl Connection {
    pub(super) fn new(
        id: EndpointId,
        endpoint: Endpoint,
        generation: u64,
        channel: Channel,
        actor: WeakAddr<ConnectionActor>,
        health: MemberHealth,
        timing: LinkTiming,
    ) -> Self {
        Self {
            id,
            endpoint,
            generation,
            channel,
            actor,
            health: watch::Sender::new(health),
            suspicions: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            term: ObservedTerm::new(Instant::now()),
            timing,
            token_refusals: TokenRefusals::new(Instant::now()),
            responded_to_token: AtomicBool::new(false),
            token_probe_requested: AtomicBool::new(false),
        }
    }

    /// Records how long a request took, as an upper bound of the round trip time.
    pub(crate) fn observe_duration(&self, elapsed: Duration) {
        self.timing.round_trips().add_upper_bound(elapsed);
    }

    /// Returns whether the connection has carried a response to a request of the application.
    pub(super) fn has_served(&self) -> bool {
        self.term.last() != 0
    }

    pub(crate) fn health(&self) -> MemberHealth {
        self.health.borrow().clone()
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<MemberHealth> {
        self.health.subscribe()
    }

    /// Reports a slow call. The member is probed at short intervals until the guard is dropped.
    pub(crate) fn suspect(self: &Arc<Self>) -> SuspicionGuard {
        self.suspicions.fetch_add(1, Ordering::Relaxed);
        self.request_probe();
        SuspicionGuard(self.clone())
    }

    /// Requests one probe, for example after the member responded with "no leader".
    pub(crate) fn request_probe(&self) {
        self.send(Suspect {
            generation: self.generation,
        });
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.suspicions.load(Ordering::Relaxed) > 0
    }

    /// Registers a long-lived stream. The member and others, for comparison, are probed regularly until the registration
    /// is dropped, because an idle stream does not notice a frozen or cut-off member by itself.
    pub(crate) fn register_stream(self: &Arc<Self>) -> StreamRegistration {
        if self.streams.fetch_add(1, Ordering::Relaxed) == 0 {
            self.send(StreamOpened);
        }
        StreamRegistration(self.clone())
    }

    pub(crate) fn has_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 0
    }

    /// Records the raft term in a response header.
    pub(crate) fn observe_term(&self, term: u64) {
        self.term.observe(term, Instant::now());
    }

    /// Returns whether the last response had a later term than this one.
    pub(crate) fn term_is_over(&self, term: Option<u64>) -> bool {
        term.is_some_and(|term| self.term.last() > term)
    }

    /// Returns the term of the last response. Call it when a request is sent; it is evaluated if the request is slow.
    pub(crate) fn term_mark(&self) -> TermMark {
        self.term.mark()
    }

    /// Returns whether requests with a token should use another member.
    pub(crate) fn refuses_tokens(&self) -> bool {
        self.token_refusals.is_avoided(Instant::now)
    }

    /// Records that the member responded to a request with a token.
    pub(crate) fn record_token_response(&self) {
        // Read before written: many requests share this cache line.
        if !self.responded_to_token.load(Ordering::Relaxed) {
            self.responded_to_token.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the member has responded to a request with a token.
    pub(crate) fn has_responded_to_token(&self) -> bool {
        self.responded_to_token.load(Ordering::Relaxed)
    }

    /// Returns whether the member has responded to a request with a token. If not, requests a probe, which carries one.
    pub(crate) fn responds_to_tokens(&self) -> bool {
        let responded = self.has_responded_to_token();
        if !responded && !self.token_probe_requested.swap(true, Ordering::Relaxed) {
            self.send(Probe);
        }
        responded
    }

    /// Returns whether a probe with a token was requested and has received no response.
    pub(super) fn awaits_token_probe(&self) -> bool {
        self.token_probe_requested.load(Ordering::Relaxed) && !self.has_responded_to_token()
    }

    /// Records the end of a probe. `responded` is whether the member responded and the probe carried a token; otherwise
    /// another probe can be requested.
    pub(super) fn token_probe_finished(&self, responded: bool) {
        if responded {
            self.record_token_response();
        } else {
            self.token_probe_requested.store(false, Ordering::Relaxed);
        }
    }

    /// Records that the member accepted a token.
    pub(crate) fn token_accepted(&self) {
        self.token_refusals.accepted();
    }

    /// Records that the member refused a token, and returns what to do.
    pub(crate) fn token_refused(&self, token: &Token) -> RefusalDecision {
        let now = Instant::now();
        let age = token.issued.map_or(Duration::MAX, |issued| {
            now.saturating_duration_since(issued)
        });
        self.token_refusals.refused(token.generation, age, now)
    }

    /// Avoids the member until a login that it caused has finished.
    pub(crate) fn avoid_during_login(&self) {
        self.token_refusals.avoid_during_login(Instant::now());
    }

    /// Reports that a response contained the id of another cluster. The connection is closed.
    pub(crate) fn report_foreign_cluster(&self, cluster: u64) {
        self.send(ForeignClusterDetected {
            generation: self.generation,
            cluster,
        });
    }

    fn send<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        ConnectionActor: Handler<M>,
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

/// Keeps a member under suspicion; see [`Connection::suspect`].
pub(crate) struct SuspicionGuard(Arc<Connection>);

impl Drop for SuspicionGuard {
    fn drop(&mut self) {
        self.0.suspicions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A long-lived stream on a connection; see [`Connection::register_stream`].
pub(crate) struct StreamRegistration(Arc<Connection>);

impl Drop for StreamRegistration {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
