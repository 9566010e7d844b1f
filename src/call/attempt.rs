//! One request on one connection: quick while all is well, watchful when it is slow.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, Sleep, sleep_until, timeout_at},
};

use super::{Response, SUSPICION};
use crate::{
    connection::{Connection, Health, Standing, Suspicion, Verdict, verdict::leader_changed},
    error::{Error, ErrorKind, Outcome},
    proto::rpc::{Rpc, RpcClass},
    transport::{
        channel::{Metadata, RequestTracker},
        grpc::RpcFailure,
    },
};

/// A write under a leader that is gone is given up after this: its answer may still be under way.
const LEADER_GRACE: Duration = Duration::from_millis(500);
/// How long a read waits for a member that seems fine before it asks again, elsewhere if it can.
const READ_PATIENCE: Duration = Duration::from_secs(1);
/// So often at the most: what takes long everywhere must not be begun again and again.
const IMPATIENT: u32 = 2;

/// One request on one connection.
pub(super) struct AttemptUnderWay<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) rpc: Rpc,
    /// Whether it has to be this member.
    pub(super) named: bool,
    /// How many attempts before this one took too long.
    pub(super) slow: u32,
    pub(super) deadline: Instant,
}

impl AttemptUnderWay<'_> {
    pub(super) async fn run<A: Response>(
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
            answer = &mut request => return answer,
            () = &mut timer => {}
        }
        let slow = Slow {
            began,
            term: term.at(began),
            sent: &sent,
        };
        // Rare, and large: it must not make every call's future large.
        Box::pin(self.wait_under_suspicion(request, timer, slow)).await
    }

    /// Waits for a place among the streams that the member allows; nothing is sent meanwhile.
    async fn await_room<'r>(
        &self,
        room: &'r Semaphore,
    ) -> Result<Option<SemaphorePermit<'r>>, RpcFailure> {
        // Nothing was sent, so that even a write may go to another member.
        let patience = self.impatience(Instant::now()).unwrap_or(self.deadline);
        let permit = timeout_at(patience, room.acquire()).await;
        let kind = match permit {
            // The semaphore is never closed: an error cannot happen, and would mean no limit.
            Ok(permit) if Instant::now() < self.deadline => return Ok(permit.ok()),
            Err(_) if Instant::now() < self.deadline => ErrorKind::MemberUnresponsive,
            Ok(_) | Err(_) => ErrorKind::DeadlineExceeded,
        };
        let text = "the member takes no more requests at once";
        Err(self.given_up(kind, text, &RequestTracker::default()))
    }

    async fn wait_under_suspicion<A: Response>(
        &self,
        mut request: Pin<&mut impl Future<Output = Result<A, RpcFailure>>>,
        mut timer: Pin<&mut Sleep>,
        slow: Slow<'_>,
    ) -> Result<A, RpcFailure> {
        let Slow { began, term, sent } = slow;
        if Instant::now() >= self.deadline {
            return Err(self.given_up(ErrorKind::DeadlineExceeded, "no answer in time", sent));
        }
        let mut health = self.connection.watch_health();
        // Who waits for somebody else to let go is slow by nature: the member is looked at now and then.
        let _watched = if self.rpc.blocking {
            Watched::Standing(self.connection.stand())
        } else {
            Watched::Suspected(self.connection.suspect())
        };
        let mut first_look = None;
        let mut lost_since: Option<Instant> = None;
        loop {
            let seen = health.borrow_and_update().clone();
            if let Some(failure) = self.condemned(&seen, sent) {
                return Err(failure);
            }
            let look = seen.sighting.filter(|look| look.at >= began);
            let changed = look.is_some_and(|look| {
                let first = *first_look.get_or_insert(look);
                leader_changed(term, Some(&first), &look)
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
                answer = request.as_mut() => return answer.map_err(|failure| self.explained(failure)),
                // The sender lives as long as the connection, which this attempt holds: there is always a next change.
                _ = health.changed() => {}
                () = timer.as_mut() => {
                    let now = Instant::now();
                    if now >= self.deadline {
                        return Err(self.given_up(ErrorKind::DeadlineExceeded, "no answer in time", sent));
                    }
                    if grace.is_some_and(|grace| now >= grace) {
                        let text = "the leader changed while the request was under way";
                        return Err(self.given_up(ErrorKind::LeaderLost, text, sent));
                    }
                    // Its answer may have begun to arrive meanwhile, and then it is waited for.
                    if self.patience(began, sent).is_some() {
                        let text = "the attempt took too long";
                        return Err(self.given_up(ErrorKind::MemberUnresponsive, text, sent));
                    }
                }
            }
        }
    }

    /// Whether a new leader means that this request's answer will not come.
    fn needs_this_leader(&self) -> bool {
        !self.rpc.leaderless && !self.rpc.blocking
    }

    /// A read asks another member when one takes too long. A write cannot: it may have been applied. Nor does a read
    /// whose answer is arriving: it is large, and would be elsewhere.
    fn patience(&self, began: Instant, sent: &RequestTracker) -> Option<Instant> {
        if self.rpc.class != RpcClass::Read || self.rpc.blocking || sent.response_started() {
            return None;
        }
        self.impatience(began)
    }

    /// When to ask again. The last attempt gets all the time that is left.
    fn impatience(&self, began: Instant) -> Option<Instant> {
        let left = self.deadline.saturating_duration_since(began);
        let again = !self.named && self.slow < IMPATIENT && left >= READ_PATIENCE * 3;
        again.then(|| began + READ_PATIENCE)
    }

    fn condemned(&self, health: &Health, sent: &RequestTracker) -> Option<RpcFailure> {
        let kind = match health.verdict {
            Verdict::NoLeader | Verdict::CutOff if !self.rpc.leaderless => ErrorKind::NoLeader,
            Verdict::NotServing if self.rpc.class == RpcClass::Read => ErrorKind::NotServing,
            // A connection that ended fails the request by itself, and that failure knows more.
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
        // What h2 has taken may be written at any time, even after it was given up here.
        let outcome = if sent.may_be_sent() {
            Outcome::Unknown
        } else {
            Outcome::NotSent
        };
        Error::new(kind, outcome, text)
            .with_endpoint(self.connection.endpoint.name())
            .into()
    }

    /// A connection that was closed because the member did not answer says so.
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

/// A request that has not been answered quickly.
struct Slow<'a> {
    began: Instant,
    /// The term it was sent under, where that is known.
    term: Option<u64>,
    sent: &'a RequestTracker,
}

/// How the member is watched while a request waits; only held.
enum Watched {
    Standing(#[expect(dead_code, reason = "a guard")] Standing),
    Suspected(#[expect(dead_code, reason = "a guard")] Suspicion),
}
