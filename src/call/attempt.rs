//! One request on one connection. Costs little while the member responds; checks the member when it is slow.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, Sleep, sleep_until, timeout_at},
};

use super::{SUSPICION, WireResponse};
use crate::{
    connection::{
        Connection, MemberHealth, StreamRegistration, SuspicionGuard, Verdict, leader_changed,
    },
    error::{Error, ErrorKind, Outcome},
    proto::rpc::{Rpc, RpcClass},
    transport::{
        channel::{Metadata, RequestTracker},
        grpc::RpcFailure,
    },
};

/// How long a request waits for its response after the leader changed.
const LEADER_GRACE: Duration = Duration::from_millis(500);
/// How long a read waits for a healthy member before it is retried, on another member if possible.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a slow read is given up and retried. A read that is slow everywhere must not start again forever.
const MAX_SLOW_ATTEMPTS: u32 = 2;

/// One request on one connection.
pub(super) struct Attempt<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) rpc: Rpc,
    /// Whether the request names this member, so that no other can serve it.
    pub(super) named: bool,
    /// Number of earlier attempts that took too long.
    pub(super) slow_attempts: u32,
    pub(super) deadline: Instant,
}

impl Attempt<'_> {
    pub(super) async fn run<A: WireResponse>(
        &self,
        metadata: &Metadata,
        body: Bytes,
    ) -> Result<A, RpcFailure> {
        let _room = match self.connection.channel.stream_permits() {
            Some(room) => self.await_room(room).await?,
            None => None,
        };
        let began = Instant::now();
        let term = self.connection.term_mark();
        let sent = RequestTracker::default();
        let request = self
            .connection
            .channel
            .unary::<A>(self.rpc.path, metadata, body, &sent);
        let mut request = std::pin::pin!(request);
        let mut timer = std::pin::pin!(sleep_until(self.deadline.min(began + SUSPICION)));
        tokio::select! {
            biased;
            response = &mut request => return response,
            () = &mut timer => {}
        }
        let slow = SlowRequest {
            began,
            term: term.at(began),
            sent: &sent,
        };
        // Boxed, because it is rare and would make the future of every call large.
        Box::pin(self.wait_while_suspect(request, timer, slow)).await
    }

    /// Waits while the member has its maximum number of concurrent streams. Nothing is sent meanwhile.
    async fn await_room<'r>(
        &self,
        room: &'r Semaphore,
    ) -> Result<Option<SemaphorePermit<'r>>, RpcFailure> {
        // Nothing was sent, so even a write can go to another member.
        let patience = self.slow_deadline(Instant::now()).unwrap_or(self.deadline);
        let permit = timeout_at(patience, room.acquire()).await;
        let kind = match permit {
            // The semaphore is never closed; an error would mean that there is no limit.
            Ok(permit) if Instant::now() < self.deadline => return Ok(permit.ok()),
            Err(_) if Instant::now() < self.deadline => ErrorKind::MemberUnresponsive,
            Ok(_) | Err(_) => ErrorKind::DeadlineExceeded,
        };
        let text = "the member allows no more concurrent requests";
        Err(self.given_up(kind, text, &RequestTracker::default()))
    }

    async fn wait_while_suspect<A: WireResponse>(
        &self,
        mut request: Pin<&mut impl Future<Output = Result<A, RpcFailure>>>,
        mut timer: Pin<&mut Sleep>,
        slow: SlowRequest<'_>,
    ) -> Result<A, RpcFailure> {
        let SlowRequest { began, term, sent } = slow;
        if Instant::now() >= self.deadline {
            return Err(self.given_up(
                ErrorKind::DeadlineExceeded,
                "no response before the deadline",
                sent,
            ));
        }
        let mut health = self.connection.watch_health();
        // A blocking RPC is slow by nature: its member is probed only now and then.
        let _guard = if self.rpc.blocking {
            ProbeGuard::Registered(self.connection.register_stream())
        } else {
            ProbeGuard::Suspected(self.connection.suspect())
        };
        let mut first_sighting = None;
        let mut lost_since: Option<Instant> = None;
        loop {
            let seen = health.borrow_and_update().clone();
            if let Some(failure) = self.unusable_member(&seen, sent) {
                return Err(failure);
            }
            let sighting = seen.status.filter(|sighting| sighting.at >= began);
            let changed = sighting.is_some_and(|sighting| {
                let first = *first_sighting.get_or_insert(sighting);
                leader_changed(term, Some(&first), &sighting)
            });
            if self.needs_this_leader() && (changed || self.connection.term_is_over(term)) {
                lost_since.get_or_insert_with(Instant::now);
            }
            let grace = lost_since.map(|since| since + LEADER_GRACE);
            let patience = self.patience(began, sent);
            let wake = [Some(self.deadline), patience, grace]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(self.deadline);
            timer.as_mut().reset(wake);
            tokio::select! {
                biased;
                response = request.as_mut() => return response.map_err(|failure| self.explained(failure)),
                // Never fails: the connection holds the sender.
                _ = health.changed() => {}
                () = timer.as_mut() => {
                    let now = Instant::now();
                    if now >= self.deadline {
                        return Err(self.given_up(ErrorKind::DeadlineExceeded, "no response before the deadline", sent));
                    }
                    if grace.is_some_and(|grace| now >= grace) {
                        let text = "the leader changed before the response arrived";
                        return Err(self.given_up(ErrorKind::LeaderLost, text, sent));
                    }
                    // Wait on if the response has started to arrive.
                    if self.patience(began, sent).is_some() {
                        let text = "the member did not respond in time";
                        return Err(self.given_up(ErrorKind::MemberUnresponsive, text, sent));
                    }
                }
            }
        }
    }

    /// Whether the response will not arrive after the leader changed.
    fn needs_this_leader(&self) -> bool {
        !self.rpc.leaderless && !self.rpc.blocking
    }

    /// When a slow read is given up. A write is not: it may have been applied. Nor is a read whose response is arriving:
    /// it is large, and would be large from another member, too.
    fn patience(&self, began: Instant, sent: &RequestTracker) -> Option<Instant> {
        if self.rpc.class != RpcClass::Read || self.rpc.blocking || sent.response_started() {
            return None;
        }
        self.slow_deadline(began)
    }

    /// When a slow attempt is given up. The last attempt gets all of the remaining time.
    fn slow_deadline(&self, began: Instant) -> Option<Instant> {
        let left = self.deadline.saturating_duration_since(began);
        let again =
            !self.named && self.slow_attempts < MAX_SLOW_ATTEMPTS && left >= READ_TIMEOUT * 3;
        again.then(|| began + READ_TIMEOUT)
    }

    fn unusable_member(&self, health: &MemberHealth, sent: &RequestTracker) -> Option<RpcFailure> {
        let kind = match health.verdict {
            Verdict::NoLeader | Verdict::CutOff if !self.rpc.leaderless => ErrorKind::NoLeader,
            Verdict::NotServing if self.rpc.class == RpcClass::Read => ErrorKind::NotServing,
            // A closed connection fails the request itself, with a more exact error.
            Verdict::Unresponsive
            | Verdict::Closed
            | Verdict::Fine
            | Verdict::Learner
            | Verdict::NoLeader
            | Verdict::CutOff
            | Verdict::Returning
            | Verdict::NotServing => return None,
        };
        Some(self.given_up(kind, health.verdict.reason(), sent))
    }

    fn given_up(&self, kind: ErrorKind, text: &'static str, sent: &RequestTracker) -> RpcFailure {
        // h2 can write a request that it has accepted at any time, even after it was given up here.
        let outcome = if sent.may_be_sent() {
            Outcome::Unknown
        } else {
            Outcome::NotSent
        };
        Error::new(kind, outcome, text)
            .with_endpoint(self.connection.endpoint.name())
            .into()
    }

    /// Replaces "connection lost" if the connection was closed because the member did not respond.
    fn explained(&self, failure: RpcFailure) -> RpcFailure {
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

/// A request without a response for [`SUSPICION`].
struct SlowRequest<'a> {
    began: Instant,
    /// Raft term when it was sent, if known.
    term: Option<u64>,
    sent: &'a RequestTracker,
}

/// Keeps the member probed while a request waits.
enum ProbeGuard {
    Registered(#[expect(dead_code, reason = "a guard")] StreamRegistration),
    Suspected(#[expect(dead_code, reason = "a guard")] SuspicionGuard),
}
