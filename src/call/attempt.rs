//! One request on one connection. While the response is late, the member is probed.
//!
//! A request in flight ends early only on evidence that its response will not come: its connection broke, or the leader
//! that had to commit it is gone. A late response alone is no evidence.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};

use super::WireResponse;
use crate::{
    connection::{
        Connection, MemberHealth, StreamRegistration, SuspicionGuard, TermMark, Verdict,
        leader_changed,
    },
    error::{Error, ErrorKind, Outcome},
    proto::rpc::Rpc,
    transport::{
        channel::{Metadata, RequestTracker},
        grpc::RpcFailure,
    },
};

/// Shortest time that a request waits for its response after the leader changed.
const LEADER_GRACE: Duration = Duration::from_millis(500);

/// One request on one connection.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) rpc: Rpc,
    pub(super) deadline: Instant,
    pub(super) tracker: &'a RequestTracker,
}

/// A request in flight.
pub(super) struct SentRequest<'a, F> {
    /// The request; `None` once it is cancelled.
    pub(super) request: Pin<&'a mut Option<F>>,
    /// Timer that the attempt uses.
    pub(super) timer: Pin<&'a mut Sleep>,
    pub(super) began: Instant,
    /// Raft term before the request was sent.
    pub(super) term: TermMark,
}

impl Attempt<'_> {
    /// Sends the request and waits for its response.
    pub(super) async fn run<R: WireResponse>(
        self,
        metadata: &Metadata,
        body: Bytes,
    ) -> Result<R, RpcFailure> {
        let began = Instant::now();
        let term = self.connection.term_mark();
        let channel = &self.connection.channel;
        let request = channel.unary::<R>(self.rpc.path, metadata, body, self.tracker);
        let request = SentRequest {
            request: std::pin::pin!(Some(request)),
            timer: std::pin::pin!(sleep_until(self.suspect_at(began))),
            began,
            term,
        };
        self.wait(request).await
    }

    /// Returns when the member is suspected because of a request that was sent at `began`.
    pub(super) fn suspect_at(&self, began: Instant) -> Instant {
        self.deadline
            .min(began + self.connection.timing.suspect_after())
    }

    /// Waits for the response to a request in flight. Cancels the request if the attempt fails.
    pub(super) async fn wait<R, F>(self, mut sent: SentRequest<'_, F>) -> Result<R, RpcFailure>
    where
        F: Future<Output = Result<R, RpcFailure>>,
    {
        let suspect_at = self.suspect_at(sent.began);
        if Instant::now() < suspect_at {
            sent.timer.as_mut().reset(suspect_at);
            tokio::select! {
                biased;
                response = response(&mut sent.request) => return response,
                () = sent.timer.as_mut() => {}
            }
        }
        let result = self.wait_while_suspected(&mut sent).await;
        sent.request.set(None);
        result
    }

    async fn wait_while_suspected<R, F>(
        self,
        sent: &mut SentRequest<'_, F>,
    ) -> Result<R, RpcFailure>
    where
        F: Future<Output = Result<R, RpcFailure>>,
    {
        let (began, term) = (sent.began, sent.term.at(sent.began));
        if Instant::now() >= self.deadline {
            return Err(self.deadline_exceeded());
        }
        let mut health = self.connection.watch_health();
        // The response to a blocking RPC is always late: its member is probed at long intervals only.
        let _guard = if self.rpc.blocking {
            ProbeGuard::Registered(self.connection.register_stream())
        } else {
            ProbeGuard::Suspected(self.connection.suspect())
        };
        let mut first_status = None;
        let mut grace_end: Option<Instant> = None;
        loop {
            let current = health.borrow_and_update().clone();
            if let Some(failure) = self.lost_leader(&current) {
                return Err(failure);
            }
            let status = current.status.filter(|status| status.at >= began);
            let changed = status.is_some_and(|status| {
                let first = *first_status.get_or_insert(status);
                leader_changed(term, Some(&first), &status)
            });
            if self.depends_on_leader() && (changed || self.connection.term_is_over(term)) {
                grace_end.get_or_insert_with(|| Instant::now() + self.leader_grace());
            }
            let wake = grace_end.map_or(self.deadline, |end| end.min(self.deadline));
            sent.timer.as_mut().reset(wake);
            tokio::select! {
                biased;
                response = response(&mut sent.request) => {
                    return response.map_err(|failure| self.explain(failure));
                }
                // Never fails: the connection holds the sender.
                _ = health.changed() => {}
                () = sent.timer.as_mut() => {
                    if Instant::now() >= self.deadline {
                        return Err(self.deadline_exceeded());
                    }
                    let reason = "the leader changed before the response arrived";
                    return Err(self.failure(ErrorKind::LeaderLost, reason));
                }
            }
        }
    }

    /// Returns whether a change of the leader can prevent the response.
    fn depends_on_leader(&self) -> bool {
        !self.rpc.leaderless && !self.rpc.blocking
    }

    /// Returns the time that a request waits for its response after the leader changed. The response may be on its way.
    fn leader_grace(&self) -> Duration {
        LEADER_GRACE.max(self.connection.timing.suspect_after())
    }

    /// Returns the failure of a request whose member has lost the leader. In any other state of the member, the
    /// response may still arrive.
    fn lost_leader(&self, health: &MemberHealth) -> Option<RpcFailure> {
        match health.verdict {
            Verdict::NoLeader | Verdict::CutOff if !self.rpc.leaderless => {
                Some(self.failure(ErrorKind::NoLeader, health.verdict.reason()))
            }
            // A closed connection fails the request itself, with a more exact error.
            Verdict::Unresponsive
            | Verdict::Late
            | Verdict::Unreachable
            | Verdict::Closed
            | Verdict::Fine
            | Verdict::Learner
            | Verdict::NoLeader
            | Verdict::CutOff
            | Verdict::Returning
            | Verdict::NotServing => None,
        }
    }

    fn deadline_exceeded(&self) -> RpcFailure {
        let reason = "no response before the deadline";
        self.failure(ErrorKind::DeadlineExceeded, reason)
    }

    fn failure(&self, kind: ErrorKind, reason: &'static str) -> RpcFailure {
        // h2 can write an accepted request at any time, even after this attempt was given up.
        let outcome = if self.tracker.may_be_sent() {
            Outcome::Unknown
        } else {
            Outcome::NotSent
        };
        Error::new(kind, outcome, reason)
            .with_endpoint(self.connection.endpoint.name())
            .into()
    }

    /// Replaces "connection lost" with "member unresponsive" if the connection was closed for that reason.
    fn explain(&self, failure: RpcFailure) -> RpcFailure {
        let lost = failure.error.kind() == ErrorKind::ConnectionLost;
        if !lost || self.connection.health().verdict != Verdict::Unresponsive {
            return failure;
        }
        let outcome = failure.error.outcome();
        Error::new(
            ErrorKind::MemberUnresponsive,
            outcome,
            Verdict::Unresponsive.reason(),
        )
        .with_endpoint(self.connection.endpoint.name())
        .into()
    }
}

/// Waits for the response to a request. Never resolves for a request that was cancelled.
pub(super) fn response<F: Future>(
    request: &mut Pin<&mut Option<F>>,
) -> impl Future<Output = F::Output> {
    poll_fn(
        move |context: &mut Context<'_>| match request.as_mut().as_pin_mut() {
            Some(request) => request.poll(context),
            None => Poll::Pending,
        },
    )
}

/// Makes the connection actor probe the member while a request waits.
enum ProbeGuard {
    Registered(#[expect(dead_code, reason = "a guard")] StreamRegistration),
    Suspected(#[expect(dead_code, reason = "a guard")] SuspicionGuard),
}
