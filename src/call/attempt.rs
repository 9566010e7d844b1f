//! One request on one connection: quick while all is well, watchful when it is slow.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, Sleep, sleep_until, timeout_at},
};

use super::{Answer, Rpc, SUSPICION};
use crate::{
    connection::{Connection, Health, Verdict, verdict::leader_changed},
    error::{Error, ErrorKind, Outcome},
    retry::RpcClass,
    transport::{channel::Metadata, grpc::Failure},
};

/// A write under a leader that is gone is given up after this: its answer may still be under way.
const LEADER_GRACE: Duration = Duration::from_millis(500);
/// How long a read waits for a member that seems fine before it asks another; doubled with each attempt.
const READ_PATIENCE: Duration = Duration::from_secs(1);

/// One request on one connection.
pub(super) struct AttemptUnderWay<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) rpc: Rpc,
    pub(super) number: u32,
    pub(super) deadline: Instant,
}

impl AttemptUnderWay<'_> {
    pub(super) async fn run<A: Answer>(
        &self,
        metadata: &Metadata,
        body: Bytes,
    ) -> Result<A, Failure> {
        let _room = match self.connection.channel.room() {
            Some(room) => self.await_room(room).await?,
            None => None,
        };
        let sent = Instant::now();
        let term = self.connection.term_mark();
        let stream = AtomicU32::new(0);
        let request = self
            .connection
            .channel
            .unary::<A>(self.rpc.path, metadata, body, &stream);
        let mut request = std::pin::pin!(request);
        let mut timer = std::pin::pin!(sleep_until(self.deadline.min(sent + SUSPICION)));
        tokio::select! {
            biased;
            answer = &mut request => return answer,
            () = &mut timer => {}
        }
        let term = term.at(sent);
        // Rare, and large: it must not make every call's future large.
        Box::pin(self.wait_under_suspicion(request, timer, sent, term, &stream)).await
    }

    /// Waits for a place among the streams that the member allows; nothing is sent meanwhile.
    async fn await_room<'r>(
        &self,
        room: &'r Semaphore,
    ) -> Result<Option<SemaphorePermit<'r>>, Failure> {
        let permit = timeout_at(self.deadline, room.acquire()).await;
        match permit {
            // The semaphore is never closed: an error cannot happen, and would mean no limit.
            Ok(permit) if Instant::now() < self.deadline => Ok(permit.ok()),
            Ok(_) | Err(_) => {
                let text = "the member takes no more requests at once";
                let unsent = AtomicU32::new(0);
                Err(self.given_up(ErrorKind::DeadlineExceeded, text, &unsent))
            }
        }
    }

    async fn wait_under_suspicion<A: Answer>(
        &self,
        mut request: Pin<&mut impl Future<Output = Result<A, Failure>>>,
        mut timer: Pin<&mut Sleep>,
        sent: Instant,
        term: Option<u64>,
        stream: &AtomicU32,
    ) -> Result<A, Failure> {
        if Instant::now() >= self.deadline {
            return Err(self.given_up(ErrorKind::DeadlineExceeded, "no answer in time", stream));
        }
        let patience = self.patience(sent);
        let mut health = self.connection.watch_health();
        let _suspicion = self.connection.suspect();
        let mut first_look = None;
        let mut lost_since: Option<Instant> = None;
        loop {
            let seen = health.borrow_and_update().clone();
            if let Some(failure) = self.condemned(&seen, stream) {
                return Err(failure);
            }
            if let Some(look) = seen.sighting.filter(|look| look.at >= sent) {
                let first = *first_look.get_or_insert(look);
                if leader_changed(term, Some(&first), &look) {
                    lost_since.get_or_insert_with(Instant::now);
                }
            }
            let grace = lost_since.map(|since| since + LEADER_GRACE);
            let wake = [Some(self.deadline), patience, grace]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(self.deadline);
            timer.as_mut().reset(wake);
            tokio::select! {
                biased;
                answer = request.as_mut() => return answer.map_err(|failure| self.explained(failure)),
                changed = health.changed() => if changed.is_err() {
                    // The connection's actor let go of it; the request itself tells how it ends.
                    return request.await.map_err(|failure| self.explained(failure));
                },
                () = timer.as_mut() => {
                    let now = Instant::now();
                    return Err(if now >= self.deadline {
                        self.given_up(ErrorKind::DeadlineExceeded, "no answer in time", stream)
                    } else if grace.is_some_and(|grace| now >= grace) {
                        self.given_up(
                            ErrorKind::LeaderLost,
                            "the leader changed while the request was under way",
                            stream,
                        )
                    } else {
                        self.given_up(ErrorKind::MemberUnresponsive, "the attempt took too long", stream)
                    });
                }
            }
        }
    }

    /// A read asks another member when one takes too long. A write cannot: it may have been applied.
    fn patience(&self, sent: Instant) -> Option<Instant> {
        let patience = READ_PATIENCE.saturating_mul(2u32.saturating_pow(self.number));
        (self.rpc.class == RpcClass::Read).then(|| sent + patience)
    }

    fn condemned(&self, health: &Health, stream: &AtomicU32) -> Option<Failure> {
        let kind = match health.verdict {
            Verdict::NoLeader | Verdict::CutOff if !self.rpc.leaderless => ErrorKind::NoLeader,
            Verdict::NotServing if self.rpc.class == RpcClass::Read => ErrorKind::Unhealthy,
            // A connection that ended fails the request by itself, and that failure knows more.
            Verdict::Unresponsive
            | Verdict::Closed
            | Verdict::Fine
            | Verdict::Learner
            | Verdict::NoLeader
            | Verdict::CutOff
            | Verdict::NotServing => return None,
        };
        Some(self.given_up(kind, health.verdict.reason(), stream))
    }

    fn given_up(&self, kind: ErrorKind, text: &'static str, stream: &AtomicU32) -> Failure {
        // What h2 has taken may be written at any time, even after it was given up here.
        let taken = stream.load(Ordering::Relaxed) != 0;
        let outcome = if taken {
            Outcome::Unknown
        } else {
            Outcome::NotSent
        };
        Error::new(kind, outcome, text)
            .with_endpoint(self.connection.endpoint.name())
            .into()
    }

    /// A connection that was closed because the member did not answer says so.
    fn explained(&self, failure: Failure) -> Failure {
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
