//! One request on one connection. While the response is late, the member is probed.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, Sleep, sleep_until, timeout_at},
};

use super::WireResponse;
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

/// Time that a request waits for its response after the leader changed.
const LEADER_GRACE: Duration = Duration::from_millis(500);
/// Time after which a slow attempt is given up and retried, on another member if possible.
const SLOW_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of slow attempts after which the next attempt is not given up, so that a read that is slow on every member
/// can finish.
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
    pub(super) async fn run<R: WireResponse>(
        &self,
        metadata: &Metadata,
        body: Bytes,
    ) -> Result<R, RpcFailure> {
        let _permit = match self.connection.channel.stream_permits() {
            Some(permits) => self.acquire_permit(permits).await?,
            None => None,
        };
        let began = Instant::now();
        let term = self.connection.term_mark();
        let tracker = RequestTracker::default();
        let request = self
            .connection
            .channel
            .unary::<R>(self.rpc.path, metadata, body, &tracker);
        let mut request = std::pin::pin!(request);
        let mut timer = std::pin::pin!(sleep_until(
            self.deadline.min(began + self.connection.suspect_after())
        ));
        tokio::select! {
            biased;
            response = &mut request => {
                if response.is_ok() {
                    self.connection.observe_duration(began.elapsed());
                }
                return response;
            }
            () = &mut timer => {}
        }
        let slow = SlowRequest {
            began,
            term: term.at(began),
            tracker: &tracker,
        };
        // Boxed, because it is rare and would make the future of every call large.
        Box::pin(self.wait_while_suspected(request, timer, slow)).await
    }

    /// Waits while the member has its maximum number of concurrent streams. Nothing is sent meanwhile.
    async fn acquire_permit<'p>(
        &self,
        permits: &'p Semaphore,
    ) -> Result<Option<SemaphorePermit<'p>>, RpcFailure> {
        // Nothing was sent, so even a write can go to another member.
        let wait_until = self
            .slow_attempt_deadline(Instant::now())
            .unwrap_or(self.deadline);
        let permit = timeout_at(wait_until, permits.acquire()).await;
        let kind = match permit {
            // The semaphore is never closed; an error would mean that there is no limit.
            Ok(permit) if Instant::now() < self.deadline => return Ok(permit.ok()),
            Err(_) if Instant::now() < self.deadline => ErrorKind::MemberUnresponsive,
            Ok(_) | Err(_) => ErrorKind::DeadlineExceeded,
        };
        let reason = "the member allows no more concurrent requests";
        Err(self.failure(kind, reason, &RequestTracker::default()))
    }

    async fn wait_while_suspected<R: WireResponse>(
        &self,
        mut request: Pin<&mut impl Future<Output = Result<R, RpcFailure>>>,
        mut timer: Pin<&mut Sleep>,
        slow: SlowRequest<'_>,
    ) -> Result<R, RpcFailure> {
        let SlowRequest {
            began,
            term,
            tracker,
        } = slow;
        if Instant::now() >= self.deadline {
            return Err(self.failure(
                ErrorKind::DeadlineExceeded,
                "no response before the deadline",
                tracker,
            ));
        }
        let mut health = self.connection.watch_health();
        // The response to a blocking RPC is always late: its member is probed at long intervals only.
        let _guard = if self.rpc.blocking {
            ProbeGuard::Registered(self.connection.register_stream())
        } else {
            ProbeGuard::Suspected(self.connection.suspect())
        };
        let mut first_status = None;
        let mut leader_changed_at: Option<Instant> = None;
        loop {
            let current = health.borrow_and_update().clone();
            if let Some(failure) = self.unusable_member(&current, tracker) {
                return Err(failure);
            }
            let status = current.status.filter(|status| status.at >= began);
            let changed = status.is_some_and(|status| {
                let first = *first_status.get_or_insert(status);
                leader_changed(term, Some(&first), &status)
            });
            if self.depends_on_leader() && (changed || self.connection.term_is_over(term)) {
                leader_changed_at.get_or_insert_with(Instant::now);
            }
            let grace_end = leader_changed_at.map(|at| at + LEADER_GRACE);
            let read_deadline = self.slow_read_deadline(began, tracker);
            let wake = [Some(self.deadline), read_deadline, grace_end]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(self.deadline);
            timer.as_mut().reset(wake);
            tokio::select! {
                biased;
                response = request.as_mut() => return response.map_err(|failure| self.explain(failure)),
                // Never fails: the connection holds the sender.
                _ = health.changed() => {}
                () = timer.as_mut() => {
                    let now = Instant::now();
                    if now >= self.deadline {
                        let reason = "no response before the deadline";
                        return Err(self.failure(ErrorKind::DeadlineExceeded, reason, tracker));
                    }
                    if grace_end.is_some_and(|end| now >= end) {
                        let reason = "the leader changed before the response arrived";
                        return Err(self.failure(ErrorKind::LeaderLost, reason, tracker));
                    }
                    // Keep waiting if the response has started to arrive.
                    if self.slow_read_deadline(began, tracker).is_some() {
                        let reason = "the member did not respond in time";
                        return Err(self.failure(ErrorKind::MemberUnresponsive, reason, tracker));
                    }
                }
            }
        }
    }

    /// Returns whether a change of the leader can prevent the response.
    fn depends_on_leader(&self) -> bool {
        !self.rpc.leaderless && !self.rpc.blocking
    }

    /// Returns when to give up a slow read. A write is not given up, because it may have been applied; nor is a read
    /// whose response is arriving, because the response would be as large from another member.
    fn slow_read_deadline(&self, began: Instant, tracker: &RequestTracker) -> Option<Instant> {
        if self.rpc.class != RpcClass::Read || self.rpc.blocking || tracker.response_started() {
            return None;
        }
        self.slow_attempt_deadline(began)
    }

    /// Returns when to give up a slow attempt. The last attempt has all of the remaining time.
    fn slow_attempt_deadline(&self, began: Instant) -> Option<Instant> {
        let remaining = self.deadline.saturating_duration_since(began);
        let may_retry = !self.named
            && self.slow_attempts < MAX_SLOW_ATTEMPTS
            && remaining >= SLOW_ATTEMPT_TIMEOUT * 3;
        may_retry.then(|| began + SLOW_ATTEMPT_TIMEOUT)
    }

    fn unusable_member(
        &self,
        health: &MemberHealth,
        tracker: &RequestTracker,
    ) -> Option<RpcFailure> {
        let kind = match health.verdict {
            Verdict::NoLeader | Verdict::CutOff if !self.rpc.leaderless => ErrorKind::NoLeader,
            Verdict::NotServing if self.rpc.class == RpcClass::Read => ErrorKind::NotServing,
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
            | Verdict::NotServing => return None,
        };
        Some(self.failure(kind, health.verdict.reason(), tracker))
    }

    fn failure(
        &self,
        kind: ErrorKind,
        reason: &'static str,
        tracker: &RequestTracker,
    ) -> RpcFailure {
        // h2 can write an accepted request at any time, even after this attempt was given up.
        let outcome = if tracker.may_be_sent() {
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

/// A request without a response for [`Connection::suspect_after`].
struct SlowRequest<'a> {
    began: Instant,
    /// Raft term in which it was sent, if known.
    term: Option<u64>,
    tracker: &'a RequestTracker,
}

/// Makes the connection actor probe the member while a request waits.
enum ProbeGuard {
    Registered(#[expect(dead_code, reason = "a guard")] StreamRegistration),
    Suspected(#[expect(dead_code, reason = "a guard")] SuspicionGuard),
}
