//! The way of one request: pick a member, send, classify, perhaps try again.
//!
//! All of it runs on the caller's own task; no mailbox is on the way. Actors are asked only when something is
//! wrong: the connection's, when a call is slow; the balancer, when nobody is ready; the retry actor, when to
//! try again.

mod member;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use actix::Addr;
use bytes::Bytes;
use prost::Message;
use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::{Instant, Sleep, sleep_until, timeout_at},
};

use crate::{
    auth::{Token, Tokens},
    balancer::{AwaitReady, BalancePolicy, Candidates, ReadySetCell, actor::BalancerActor},
    connection::{Connection, EndpointId, Health, Verdict, actor::Shared, verdict::leader_changed},
    error::{Error, ErrorKind, Outcome},
    proto::ResponseHeader,
    retry::{
        RetryPolicy, RpcClass, ScheduleRetry,
        actor::RetryActor,
        attempts::{Attempts, Failure as Failed, Next},
        budget::{Grant, RetryBudget},
        pushback::Pushback,
    },
    runtime::shut_down,
    transport::{Endpoint, channel::Metadata, grpc::Failure},
};

/// A call that waits for longer makes its member suspect.
const SUSPICION: Duration = Duration::from_millis(250);
/// A write under a leader that is gone is given up after this: its answer may still be under way.
const LEADER_GRACE: Duration = Duration::from_millis(500);
/// How long a read waits for a member that seems fine before it asks another; doubled with each attempt.
const READ_PATIENCE: Duration = Duration::from_secs(1);

/// A kind of request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rpc {
    pub(crate) path: &'static str,
    pub(crate) class: RpcClass,
    /// Whether a member without leader can answer it.
    pub(crate) leaderless: bool,
}

/// An answer's message. Its header tells cluster and term.
pub(crate) trait Answer: Message + Default {
    fn header(&self) -> Option<&ResponseHeader>;
}

/// What every call needs.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) ready: Arc<ReadySetCell>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) policy: Arc<dyn BalancePolicy>,
    pub(crate) retry_policy: Arc<dyn RetryPolicy>,
    pub(crate) budget: Arc<RetryBudget>,
    pub(crate) tokens: Tokens,
    /// The one member that may answer, where the request names one.
    pub(crate) only: Option<Endpoint>,
    pub(crate) balancer: Addr<BalancerActor>,
    pub(crate) retries: Addr<RetryActor>,
}

impl Caller {
    /// Sends a request until it is answered, refused for good, or its time is over.
    pub(crate) async fn unary<A: Answer>(
        &self,
        rpc: Rpc,
        body: Bytes,
        timeout: Duration,
    ) -> Result<A, Error> {
        let started = Instant::now();
        let deadline = started + timeout;
        let mut trouble: Option<Trouble> = None;
        loop {
            let token = self.tokens.current(deadline).await?;
            let Some(connection) = self.pick(rpc.leaderless, trouble.as_ref()) else {
                self.await_ready(rpc.leaderless, deadline, trouble.as_ref())
                    .await?;
                continue;
            };
            let metadata = Metadata {
                require_leader: !rpc.leaderless,
                token: token.value.clone(),
                timeout: Some(match &trouble {
                    None => timeout,
                    Some(_) => deadline.saturating_duration_since(Instant::now()),
                }),
            };
            let made = trouble
                .as_ref()
                .map_or(0, |trouble| trouble.attempts.made());
            let attempt = AttemptUnderWay {
                connection: &connection,
                rpc,
                number: made,
                deadline,
            };
            let failure = match attempt.run::<A>(&metadata, body.clone()).await {
                Ok(answer) => {
                    self.retry_policy.succeeded(rpc.path);
                    self.budget.succeeded(Instant::now().into_std());
                    return self.accept(answer, &connection);
                }
                Err(failure) => failure,
            };
            if !self.balancer.connected() {
                return Err(shut_down().with_outcome(failure.error.outcome()));
            }
            if failure.error.kind() == ErrorKind::NoLeader {
                connection.doubt();
            }
            let trouble = trouble.get_or_insert_with(|| Trouble::new(rpc, self.member_count()));
            let next = trouble.failed(&*self.retry_policy, &connection, failure, started);
            match next {
                Next::Retry(wait) => self.wait(wait, deadline, trouble).await?,
                Next::Refresh(wait) => {
                    self.renew_token(&token, deadline, trouble).await?;
                    if !wait.is_zero() {
                        self.wait(wait, deadline, trouble).await?;
                    }
                }
                Next::Fail => return Err(trouble.verdict()),
                Next::Done => return Ok(A::default()),
            }
        }
    }

    /// Waits for a token in place of the refused one. Without credentials nobody can get one.
    async fn renew_token(
        &self,
        refused: &Token,
        deadline: Instant,
        trouble: &mut Trouble,
    ) -> Result<(), Error> {
        let why = trouble
            .last
            .as_ref()
            .map_or(ErrorKind::InvalidAuthToken, Error::kind);
        match self.tokens.renewed(refused, why, deadline).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(trouble.verdict()),
            Err(error) => Err(error
                .with_outcome(trouble.attempts.outcome(Outcome::Rejected))
                .with_attempts(trouble.attempts.made())),
        }
    }

    /// A connection for a stream or another use that is not a call of ours.
    pub(crate) async fn ready_connection(
        &self,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        loop {
            if let Some(connection) = self.pick(false, None) {
                return Ok(connection);
            }
            self.await_ready(false, deadline, None).await?;
        }
    }

    /// Waits until a member can take a request.
    pub(crate) async fn wait_ready(&self, deadline: Instant) -> Result<(), Error> {
        while self.ready.load().ready.is_empty() {
            self.await_ready(false, deadline, None).await?;
        }
        Ok(())
    }

    fn member_count(&self) -> usize {
        if self.only.is_some() {
            return 1;
        }
        self.ready.load().members.len()
    }

    fn pick(&self, leaderless: bool, trouble: Option<&Trouble>) -> Option<Arc<Connection>> {
        if let Some(endpoint) = &self.only {
            return self.connection_of(endpoint);
        }
        let set = self.ready.load();
        let usable = if set.ready.is_empty() && leaderless {
            &set.leaderless
        } else {
            &set.ready
        };
        if usable.is_empty() {
            return None;
        }
        let candidates = Candidates::new(usable);
        let mut chosen = &usable[0];
        for _ in 0..usable.len() {
            let index = self.policy.pick(&candidates);
            chosen = usable.get(index).unwrap_or(&usable[0]);
            match trouble {
                Some(trouble) if trouble.avoided.contains(&chosen.id) => {}
                _ => return Some(chosen.clone()),
            }
        }
        // A policy that insists on one member must not keep a retry from the others.
        let other = usable
            .iter()
            .find(|other| trouble.is_none_or(|trouble| !trouble.avoided.contains(&other.id)));
        Some(other.unwrap_or(chosen).clone())
    }

    async fn await_ready(
        &self,
        leaderless: bool,
        deadline: Instant,
        trouble: Option<&Trouble>,
    ) -> Result<(), Error> {
        if self.ready.load().closed {
            return Err(shut_down());
        }
        if let Some(endpoint) = &self.only {
            return self.await_member(endpoint, deadline).await;
        }
        let (ready, told) = oneshot::channel();
        self.balancer.do_send(AwaitReady { ready, leaderless });
        match timeout_at(deadline, told).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) if self.ready.load().closed || !self.balancer.connected() => {
                Err(shut_down())
            }
            // The balancer crashed on the way: its next life has the question again.
            Ok(Err(_)) => {
                tokio::task::yield_now().await;
                Ok(())
            }
            Err(_) => Err(self.nobody_ready(trouble)),
        }
    }

    fn nobody_ready(&self, trouble: Option<&Trouble>) -> Error {
        let text = self.ready.load().complaints();
        let outcome = trouble.map_or(Outcome::NotSent, |trouble| {
            trouble.attempts.outcome(Outcome::NotSent)
        });
        let made = trouble.map_or(0, |trouble| trouble.attempts.made());
        Error::new(ErrorKind::Unavailable, outcome, text).with_attempts(made)
    }

    /// Waits for the next attempt: as long as the backoff says, or until a member becomes ready.
    async fn wait(
        &self,
        wait: Duration,
        deadline: Instant,
        trouble: &Trouble,
    ) -> Result<(), Error> {
        let budget = loop {
            match self.budget.take(Instant::now().into_std()) {
                Grant::After(wait) => break wait,
                Grant::AskAgain(later) => {
                    if Instant::now() + later >= deadline {
                        tokio::time::sleep_until(deadline).await;
                        return Err(trouble.out_of_time());
                    }
                    tokio::time::sleep(later).await;
                }
            }
        };
        let now = Instant::now();
        let not_before = now + budget;
        let due = (now + wait).max(not_before);
        if due <= now {
            return Ok(());
        }
        tracing::debug!(wait = ?due - now, attempts = trouble.attempts.made(), "next attempt later");
        let (ticket, given) = oneshot::channel();
        self.retries.do_send(ScheduleRetry {
            due,
            not_before,
            ticket,
        });
        if let Ok(Err(_)) = timeout_at(deadline.min(due + SUSPICION), given).await {
            // The retry actor is gone: this call keeps the time itself.
            sleep_until(due.min(deadline)).await;
        }
        if Instant::now() >= deadline {
            return Err(trouble.out_of_time());
        }
        Ok(())
    }

    fn accept<A: Answer>(&self, answer: A, connection: &Connection) -> Result<A, Error> {
        if let Some(header) = answer.header() {
            if !self.shared.cluster.accepts(header.cluster_id) {
                return Err(crate::connection::actor::other_cluster(
                    self.shared.cluster.get(),
                    header.cluster_id,
                )
                .with_outcome(Outcome::Unknown)
                .with_endpoint(connection.endpoint.name()));
            }
            connection.observe_term(header.raft_term);
        }
        Ok(answer)
    }
}

/// What went wrong with a call so far.
struct Trouble {
    attempts: Attempts,
    avoided: Vec<EndpointId>,
    members: usize,
    last: Option<Error>,
}

impl Trouble {
    fn new(rpc: Rpc, members: usize) -> Self {
        Self {
            attempts: Attempts::new(rpc.path, rpc.class, members),
            avoided: Vec::new(),
            members,
            last: None,
        }
    }

    fn failed(
        &mut self,
        policy: &dyn RetryPolicy,
        connection: &Connection,
        failure: Failure,
        started: Instant,
    ) -> Next {
        let Failure { error, pushback } = failure;
        tracing::debug!(endpoint = %connection.endpoint, %error, "attempt failed");
        let failed = Failed {
            kind: error.kind(),
            code: error.code(),
            outcome: error.outcome(),
            member: Some(connection.id.0),
            pushback: pushback.map(|value| Pushback::parse(value.as_bytes())),
            elapsed: started.elapsed(),
        };
        self.last = Some(error);
        let next = self.attempts.failed(policy, &failed, &mut fastrand::f64);
        self.avoided.push(connection.id);
        if !matches!(next, Next::Retry(Duration::ZERO)) || self.avoided.len() >= self.members {
            self.avoided.clear();
        }
        next
    }

    fn verdict(&mut self) -> Error {
        let last = self.last.take().unwrap_or_else(shut_down);
        let outcome = self.attempts.outcome(last.outcome());
        last.with_outcome(outcome)
            .with_attempts(self.attempts.made())
    }

    fn out_of_time(&self) -> Error {
        let (outcome, text) = match &self.last {
            Some(last) => (last.outcome(), format!("the last attempt failed: {last}")),
            None => (Outcome::NotSent, "no attempt was made".to_owned()),
        };
        Error::new(
            ErrorKind::DeadlineExceeded,
            self.attempts.outcome(outcome),
            text,
        )
        .with_attempts(self.attempts.made())
    }
}

/// One request on one connection.
struct AttemptUnderWay<'a> {
    connection: &'a Arc<Connection>,
    rpc: Rpc,
    number: u32,
    deadline: Instant,
}

impl AttemptUnderWay<'_> {
    async fn run<A: Answer>(&self, metadata: &Metadata, body: Bytes) -> Result<A, Failure> {
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
