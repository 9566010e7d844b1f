//! The way of one request: pick a member, send, classify, perhaps try again.
//!
//! All of it runs on the caller's own task; no mailbox is on the way. Actors are asked only when something is
//! wrong: the connection's, when a call is slow; the balancer, when nobody is ready; the retry actor, when to
//! try again.

mod attempt;
mod first;
mod member;
mod trouble;

use std::{sync::Arc, time::Duration};

use actix::Addr;
use bytes::Bytes;
use prost::Message;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    auth::engine::{Token, Tokens},
    balancer::{BalancePolicy, BalancerActor, ReadyEndpoints, ReadySetCell, messages::AwaitReady},
    connection::{Connection, ConnectionContext, foreign_cluster},
    error::{Error, ErrorKind, Outcome},
    proto::ResponseHeader,
    retry::{
        RetryPolicy, RpcClass, ScheduleRetry,
        actor::RetryActor,
        attempts::Next,
        budget::{Grant, RetryBudget},
    },
    transport::{Endpoint, channel::Metadata},
};
use attempt::AttemptUnderWay;
use trouble::Trouble;

/// A call that waits for longer makes its member suspect.
const SUSPICION: Duration = Duration::from_millis(250);

/// A kind of request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rpc {
    pub(crate) path: &'static str,
    pub(crate) class: RpcClass,
    /// Whether a member without leader can answer it.
    pub(crate) leaderless: bool,
    /// Whether it is answered only when somebody else lets go: a lock, a campaign.
    pub(crate) waits: bool,
}

/// A time-out that no clock can measure ends after this, which is as good as never.
pub(crate) const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// When a time-out that begins now ends.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(NEVER)
}

/// An answer's message. Its header tells cluster and term.
pub(crate) trait Answer: Message + Default {
    fn header(&self) -> Option<&ResponseHeader>;
}

/// What every call needs.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) ready: Arc<ReadySetCell>,
    pub(crate) shared: Arc<ConnectionContext>,
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
        let deadline = deadline_in(timeout);
        if timeout.is_zero() {
            let text = "no time was left to send it";
            return Err(Error::new(
                ErrorKind::DeadlineExceeded,
                Outcome::NotSent,
                text,
            ));
        }
        let mut left = timeout;
        let mut trouble: Option<Trouble> = None;
        loop {
            let token = match self.tokens.current(deadline).await {
                Ok(token) => token,
                Err(error) => return Err(in_all(trouble.as_ref(), self.no_token(error))),
            };
            let Some(connection) = self.pick(rpc.leaderless, trouble.as_ref()) else {
                let ready = self.await_ready(rpc.leaderless, deadline).await;
                ready.map_err(|error| in_all(trouble.as_ref(), error))?;
                left = deadline.saturating_duration_since(Instant::now());
                continue;
            };
            let metadata = Metadata {
                require_leader: !rpc.leaderless,
                token: token.value.clone(),
                timeout: Some(left),
            };
            let attempt = AttemptUnderWay {
                connection: &connection,
                rpc,
                named: self.only.is_some(),
                slow: trouble.as_ref().map_or(0, |trouble| trouble.slow),
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
                let ended = Error::shut_down().with_outcome(failure.error.outcome());
                return Err(in_all(trouble.as_ref(), ended));
            }
            if failure.error.kind() == ErrorKind::NoLeader {
                connection.request_probe();
            }
            let members = self.member_count();
            let trouble = trouble.get_or_insert_with(|| Trouble::new(rpc, started, members));
            let next = trouble.failed(&*self.retry_policy, &connection, failure, members);
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
            left = deadline.saturating_duration_since(Instant::now());
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

    /// Why there is no token to send. Where nobody can be reached, that is the reason.
    fn no_token(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::DeadlineExceeded && self.ready.load().ready.is_empty() {
            return self.nobody_ready();
        }
        error
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
            self.await_ready(false, deadline).await?;
        }
    }

    /// Waits until a member can take a request.
    pub(crate) async fn wait_ready(&self, deadline: Instant) -> Result<(), Error> {
        while self.ready.load().ready.is_empty() {
            self.await_ready(false, deadline).await?;
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
        let candidates = ReadyEndpoints::new(usable);
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

    async fn await_ready(&self, leaderless: bool, deadline: Instant) -> Result<(), Error> {
        if self.ready.load().closed {
            return Err(Error::shut_down());
        }
        if let Some(endpoint) = &self.only {
            return self.await_member(endpoint, deadline).await;
        }
        let (ready, told) = oneshot::channel();
        self.balancer.do_send(AwaitReady { ready, leaderless });
        match timeout_at(deadline, told).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) if self.ready.load().closed || !self.balancer.connected() => {
                Err(Error::shut_down())
            }
            // The balancer crashed on the way: its next life has the question again.
            Ok(Err(_)) => {
                tokio::task::yield_now().await;
                Ok(())
            }
            Err(_) => Err(self.nobody_ready()),
        }
    }

    fn nobody_ready(&self) -> Error {
        self.ready.load().none_ready()
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
        // Whoever asks to wait for longer gets no ticket that outlives the call.
        let due = not_before.max(deadline.min(now + wait.min(NEVER)));
        if due <= now {
            return if now < deadline {
                Ok(())
            } else {
                Err(trouble.out_of_time())
            };
        }
        let (pause, made) = (due - now, trouble.attempts.made());
        tracing::debug!(parent: &trouble.span, wait = ?pause, attempts = made, "next attempt later");
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
                connection.report_foreign_cluster(header.cluster_id);
                return Err(
                    foreign_cluster(self.shared.cluster.get(), header.cluster_id)
                        .with_outcome(Outcome::Unknown)
                        .with_endpoint(connection.endpoint.name()),
                );
            }
            connection.observe_term(header.raft_term);
        }
        Ok(answer)
    }
}

/// An error that ends a call, with what its earlier attempts may have done.
fn in_all(trouble: Option<&Trouble>, error: Error) -> Error {
    match trouble {
        None => error,
        Some(trouble) => {
            let outcome = trouble.attempts.outcome(error.outcome());
            error
                .with_outcome(outcome)
                .with_attempts(trouble.attempts.made())
        }
    }
}
