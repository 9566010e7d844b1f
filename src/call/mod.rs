//! The path of a request: pick a member, send, classify the failure, retry.
//!
//! Everything runs on the caller's own task, without a mailbox in between. Actors take part only in exceptional cases:
//! the connection actor when a call is slow, the balancer when no member is ready, the retry actor when a retry has to
//! wait. A slow request that may be repeated is hedged: a copy goes to another member, and the first response wins.

mod attempt;
mod copies;
mod first_ready;
mod free_stream;
mod hedge;
pub(crate) mod in_flight_limit;
mod named_member;
pub(crate) mod tokens;

use std::{sync::Arc, time::Duration};

use actix::Addr;
use bytes::Bytes;
use prost::Message;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    balancer::{BalancePolicy, BalancerActor, ReadyEndpoints, ReadySetCell, messages::AwaitReady},
    connection::{Connection, ConnectionContext, EndpointId, foreign_cluster_error, token::Token},
    error::{Error, ErrorKind, Outcome},
    proto::{ResponseHeader, rpc::Rpc},
    retry::{
        RetryPolicy, ScheduleRetry,
        actor::RetryActor,
        budget::{BudgetGrant, RetryBudget},
        failure_log::{FailureLog, RetryPlan},
        pushback::Pushback,
    },
    transport::{
        Endpoint,
        channel::{Metadata, StreamUse},
        grpc::{RpcFailure, message_size},
    },
};
use copies::CopiesFailed;
use in_flight_limit::InFlightLimit;
use tokens::Tokens;

/// Time after which a call that was to receive its retry ticket waits without the retry actor.
const TICKET_GRACE: Duration = Duration::from_millis(250);

/// Longest timeout. The deadline of a longer one could overflow `Instant`.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Returns the deadline of a timeout that starts now.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_TIMEOUT)
}

/// A response message, whose header contains the cluster id and the raft term.
pub(crate) trait WireResponse: Message + Default {
    /// Returns the header, if etcd sent one.
    fn header(&self) -> Option<&ResponseHeader>;
}

/// Sends requests. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    pub(crate) ready_set: Arc<ReadySetCell>,
    pub(crate) context: Arc<ConnectionContext>,
    pub(crate) policy: Arc<dyn BalancePolicy>,
    pub(crate) retry_policy: Arc<dyn RetryPolicy>,
    pub(crate) budget: Arc<RetryBudget>,
    pub(crate) in_flight: InFlightLimit,
    /// Whether late requests that may be repeated are also sent to another member.
    pub(crate) hedging: bool,
    pub(crate) tokens: Tokens,
    /// The member to use, if requests name one.
    pub(crate) named_endpoint: Option<Endpoint>,
    pub(crate) balancer: Addr<BalancerActor>,
    pub(crate) retries: Addr<RetryActor>,
}

impl Caller {
    /// Sends a request and retries it until it succeeds, fails with an error that is not retried, or its deadline
    /// passes.
    pub(crate) async fn unary<R: WireResponse>(
        &self,
        rpc: Rpc,
        body: Bytes,
        timeout: Duration,
    ) -> Result<R, Error> {
        let mut call = CallState {
            rpc,
            started: Instant::now(),
            deadline: deadline_in(timeout),
            body_size: body.len(),
            failures: None,
        };
        let deadline = call.deadline;
        if timeout.is_zero() {
            let reason = "the timeout is zero";
            let kind = ErrorKind::DeadlineExceeded;
            return Err(Error::new(kind, Outcome::NotSent, reason).with_rpc(rpc));
        }
        let mut remaining = timeout;
        loop {
            let token = match self.tokens.current(deadline).await {
                Ok(token) => token,
                Err(error) => return Err(call.complete(self.no_token_error(error))),
            };
            let in_flight = if let Some(in_flight) = self.in_flight.try_admit(rpc) {
                in_flight
            } else {
                let admitted = Box::pin(self.in_flight.admit(deadline)).await;
                remaining = deadline.saturating_duration_since(Instant::now());
                admitted.map_err(|error| call.complete(error))?
            };
            let Some(mut connection) =
                self.pick(rpc.leaderless, call.failures.as_ref(), StreamUse::Call)
            else {
                drop(in_flight);
                let ready = self.await_candidate(rpc.leaderless, deadline).await;
                ready.map_err(|error| call.complete(error))?;
                remaining = deadline.saturating_duration_since(Instant::now());
                continue;
            };
            let mut slot = connection.channel.try_slot(StreamUse::Call);
            if slot.is_none() {
                let waiting = Box::pin(self.wait_for_stream(connection, deadline));
                let (free, acquired) = waiting.await.map_err(|error| call.complete(error))?;
                (connection, slot) = (free, Some(acquired));
                remaining = deadline.saturating_duration_since(Instant::now());
            }
            let metadata = Metadata {
                require_leader: !rpc.leaderless,
                token: token.value.clone(),
                timeout: Some(remaining),
            };
            let plan = match self
                .send::<R>(&mut call, &connection, &metadata, &body)
                .await
            {
                Ok(response) => return Ok(response),
                Err(CopiesFailed::Fail(error)) => return Err(error),
                Err(CopiesFailed::Retry(plan)) => plan,
            };
            drop((slot, in_flight));
            self.prepare_retry(&call, &token, plan).await?;
            remaining = deadline.saturating_duration_since(Instant::now());
        }
    }

    /// Accepts the response that ends a call.
    fn succeed<R: WireResponse>(
        &self,
        rpc: Rpc,
        response: R,
        connection: &Connection,
    ) -> Result<R, Error> {
        self.retry_policy.succeeded(rpc.path);
        self.budget.succeeded(Instant::now().into_std());
        // A login carries no token.
        if self.tokens.are_sent() {
            connection.token_accepted();
            connection.token_answered();
        }
        self.accept(rpc, response, connection)
    }

    /// Records a failed attempt. `other_in_flight` is whether another copy of the request may have been sent and has not
    /// ended.
    fn record_failure(
        &self,
        call: &mut CallState,
        connection: &Connection,
        failure: RpcFailure,
        other_in_flight: bool,
    ) -> AfterFailure {
        if !self.balancer.connected() {
            let outcome = if other_in_flight {
                Outcome::Unknown
            } else {
                failure.error.outcome()
            };
            let ended = Error::shut_down().with_outcome(outcome);
            return AfterFailure::ShutDown(call.complete(ended));
        }
        let failure = self.add_context(failure, call.body_size);
        if failure.error.code().is_some() && self.tokens.are_sent() {
            connection.token_answered();
        }
        if concerns_member(failure.error.kind()) {
            connection.request_probe();
        }
        let (rpc, members) = (call.rpc, self.member_count());
        let log = call
            .failures
            .get_or_insert_with(|| FailureLog::new(rpc, members));
        log.set_members(members);
        if log.shows_success(&failure.error, other_in_flight) {
            return AfterFailure::Succeeded;
        }
        tracing::debug!(
            rpc = rpc.path,
            endpoint = %connection.endpoint,
            error = %failure.error,
            "attempt failed"
        );
        let pushback = failure
            .pushback
            .map(|value| Pushback::parse(value.as_bytes()));
        let plan = log.record(
            &*self.retry_policy,
            (connection.id.0, failure.error),
            pushback,
            call.started.elapsed(),
            &mut fastrand::f64,
        );
        plan.map_or(AfterFailure::Fail, AfterFailure::Retry)
    }

    /// Waits until the request may be sent again.
    async fn prepare_retry(
        &self,
        call: &CallState,
        token: &Token,
        plan: RetryPlan,
    ) -> Result<(), Error> {
        let Some(log) = &call.failures else {
            return Ok(());
        };
        if plan.renew_token && !self.is_members_fault(token, log) {
            self.renew_token(token, call.deadline, log).await?;
        }
        if !plan.renew_token || !plan.delay.is_zero() {
            self.wait_for_retry(call.rpc, plan.delay, call.deadline, log)
                .await?;
        }
        Ok(())
    }

    /// Adds the user to the error of a request that lacks a permission, and checks which message was too large.
    fn add_context(&self, mut failure: RpcFailure, body_size: usize) -> RpcFailure {
        failure.error = failure.error.with_request_size(message_size(body_size));
        if failure.error.kind() == ErrorKind::PermissionDenied {
            failure.error = failure.error.with_user(self.context.token.user());
        }
        failure
    }

    /// Returns whether to send the request to another member with the same token.
    fn is_members_fault(&self, refused: &Token, log: &FailureLog) -> bool {
        let Some((member, kind)) = log.last_failure() else {
            return false;
        };
        let has_choice = self.named_endpoint.is_none();
        let member = EndpointId(member);
        self.tokens.is_members_fault(member, refused, kind) && has_choice
    }

    /// Waits for a token newer than the rejected one. Fails with the last error if there can be none.
    async fn renew_token(
        &self,
        rejected: &Token,
        deadline: Instant,
        log: &FailureLog,
    ) -> Result<(), Error> {
        let kind = log.last_kind().unwrap_or(ErrorKind::InvalidAuthToken);
        match self.tokens.renewed(rejected, kind, deadline).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(log.clone().into_error()),
            // The renewed token was refused as well: that is the reason, not the wait for the next login.
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded && log.attempts() > 1 => {
                Err(log.clone().into_error())
            }
            Err(error) => Err(log.complete(error.with_outcome(Outcome::Rejected))),
        }
    }

    /// Returns the error of a call that received no token in time. If no member is ready, that is the reason.
    fn no_token_error(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::DeadlineExceeded && self.ready_set.load().ready.is_empty() {
            return self.none_ready();
        }
        error
    }

    /// Returns a connection for a stream, or for a request that does not use [`unary`](Self::unary).
    pub(crate) async fn ready_connection(
        &self,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        loop {
            if let Some(connection) = self.pick(false, None, StreamUse::LongLived) {
                return Ok(connection);
            }
            self.await_candidate(false, deadline).await?;
        }
    }

    /// Waits until a member is ready for all requests.
    pub(crate) async fn wait_ready(&self, deadline: Instant) -> Result<(), Error> {
        while self.ready_set.load().ready.is_empty() {
            self.await_candidate(false, deadline).await?;
        }
        Ok(())
    }

    fn member_count(&self) -> usize {
        if self.named_endpoint.is_some() {
            return 1;
        }
        self.ready_set.load().views.len()
    }

    /// Returns a connection that the policy picks, if possible one that has not failed and has a free stream.
    fn pick(
        &self,
        leaderless: bool,
        failures: Option<&FailureLog>,
        stream_use: StreamUse,
    ) -> Option<Arc<Connection>> {
        if let Some(endpoint) = &self.named_endpoint {
            return self.connection_of(endpoint);
        }
        let set = self.ready_set.load();
        let usable = if set.ready.is_empty() && leaderless {
            &set.leaderless
        } else {
            &set.ready
        };
        if usable.is_empty() {
            return None;
        }
        let avoided = |connection: &Connection| {
            failures.is_some_and(|log| log.avoids(connection.id.0))
                || !self.accepts_token(connection)
        };
        let preferred = |connection: &Connection| {
            let channel = &connection.channel;
            channel.accepts_requests() && channel.has_free_slot(stream_use) && !avoided(connection)
        };
        let endpoints = ReadyEndpoints::new(usable);
        let mut picked = &usable[0];
        for _ in 0..usable.len() {
            let index = self.policy.pick(&endpoints);
            picked = usable.get(index).unwrap_or(&usable[0]);
            if preferred(picked) {
                return Some(picked.clone());
            }
        }
        // A policy that always picks the same member must not prevent a retry on the others.
        if let Some(other) = usable.iter().find(|other| preferred(other)) {
            return Some(other.clone());
        }
        // All have failed or have no free stream. The rounds above end at the same member each time, so the waiting
        // calls are spread at random. A member that has not responded to a token yet is better than one that refused it.
        let mut waited_for: Vec<_> = usable.iter().filter(|other| !avoided(other)).collect();
        if waited_for.is_empty() {
            waited_for.extend(usable.iter().filter(|other| !other.refuses_tokens()));
        }
        let index = fastrand::usize(..waited_for.len().max(1));
        Some(waited_for.get(index).copied().unwrap_or(picked).clone())
    }

    /// Returns whether the member is known to process requests with the client's token.
    fn accepts_token(&self, connection: &Connection) -> bool {
        !connection.refuses_tokens() && (!self.tokens.are_sent() || connection.answers_tokens())
    }

    /// Returns the ready members that pass the filter. A request that names its member has no others.
    fn other_members(&self, filter: impl Fn(&Arc<Connection>) -> bool) -> Vec<Arc<Connection>> {
        if self.named_endpoint.is_some() {
            return Vec::new();
        }
        let set = self.ready_set.load();
        let others = set.ready.iter().filter(|other| filter(other));
        others.cloned().collect()
    }

    /// Waits until there may be a member for [`pick`](Self::pick).
    async fn await_candidate(&self, leaderless: bool, deadline: Instant) -> Result<(), Error> {
        if self.ready_set.load().closed {
            return Err(Error::shut_down());
        }
        if let Some(endpoint) = &self.named_endpoint {
            return self.await_named_member(endpoint, deadline).await;
        }
        let (ready, is_ready) = oneshot::channel();
        self.balancer.do_send(AwaitReady { ready, leaderless });
        match timeout_at(deadline, is_ready).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) if self.ready_set.load().closed || !self.balancer.connected() => {
                Err(Error::shut_down())
            }
            // The balancer crashed and restarts: the caller sends the message again.
            Ok(Err(_)) => {
                tokio::task::yield_now().await;
                Ok(())
            }
            Err(_) => Err(self.none_ready()),
        }
    }

    fn none_ready(&self) -> Error {
        let tie = self.context.cluster.tie();
        tie.unwrap_or_else(|| self.ready_set.load().none_ready())
    }

    /// Waits for the next attempt: for the delay, or until a member becomes ready, and for the retry budget.
    async fn wait_for_retry(
        &self,
        rpc: Rpc,
        delay: Duration,
        deadline: Instant,
        log: &FailureLog,
    ) -> Result<(), Error> {
        let budget_delay = loop {
            match self.budget.take(Instant::now().into_std()) {
                BudgetGrant::After(delay) => break delay,
                BudgetGrant::RequestAgain(later) => {
                    if Instant::now() + later >= deadline {
                        sleep_until(deadline).await;
                        return Err(log.deadline_exceeded());
                    }
                    tokio::time::sleep(later).await;
                }
            }
        };
        let now = Instant::now();
        let not_before = now + budget_delay;
        // The backoff ends at the deadline at the latest, so that the ticket does not outlive the call.
        let due = not_before.max(deadline.min(now + delay.min(MAX_TIMEOUT)));
        if due <= now {
            return if now < deadline {
                Ok(())
            } else {
                Err(log.deadline_exceeded())
            };
        }
        tracing::debug!(
            rpc = rpc.path,
            delay = ?(due - now),
            attempts = log.attempts(),
            "retry scheduled"
        );
        let (ticket, is_due) = oneshot::channel();
        self.retries.do_send(ScheduleRetry {
            due,
            not_before,
            ticket,
        });
        if let Ok(Err(_)) = timeout_at(deadline.min(due + TICKET_GRACE), is_due).await {
            // The retry actor crashed or stopped: wait without it.
            sleep_until(due.min(deadline)).await;
        }
        if Instant::now() >= deadline {
            return Err(log.deadline_exceeded());
        }
        Ok(())
    }

    /// Accepts a response, unless it comes from another cluster.
    fn accept<R: WireResponse>(
        &self,
        rpc: Rpc,
        response: R,
        connection: &Connection,
    ) -> Result<R, Error> {
        if let Some(header) = response.header() {
            if !self.context.cluster.accepts(header.cluster_id) {
                connection.report_foreign_cluster(header.cluster_id);
                return Err(
                    foreign_cluster_error(self.context.cluster.get(), header.cluster_id)
                        .with_rpc(rpc)
                        .with_outcome(Outcome::Unknown)
                        .with_endpoint(connection.endpoint.name()),
                );
            }
            connection.observe_term(header.raft_term);
        }
        Ok(response)
    }
}

/// One call: a request with its retries and copies.
struct CallState {
    rpc: Rpc,
    started: Instant,
    deadline: Instant,
    /// Size of the encoded request.
    body_size: usize,
    failures: Option<FailureLog>,
}

impl CallState {
    fn failed_attempts(&self) -> u32 {
        self.failures.as_ref().map_or(0, FailureLog::attempts)
    }

    /// Returns whether the next attempt should use another member, if there is one.
    fn avoids(&self, connection: &Connection) -> bool {
        let failures = self.failures.as_ref();
        failures.is_some_and(|log| log.avoids(connection.id.0))
    }

    /// Returns whether the last failure ends the call even if a copy of the request is in flight.
    fn is_over(&self) -> bool {
        self.failures
            .as_ref()
            .is_some_and(FailureLog::last_is_final)
    }

    /// Records a copy in flight that is cancelled because the call has failed.
    fn record_cancelled(&mut self, may_be_sent: bool) {
        if let Some(log) = &mut self.failures {
            log.record_cancelled(may_be_sent);
        }
    }

    /// Adds the operation, and the outcome of earlier attempts, to an error that ends the call.
    fn complete(&self, error: Error) -> Error {
        match &self.failures {
            None => error.with_rpc(self.rpc),
            Some(log) => log.complete(error),
        }
    }

    /// Returns the error of the call: that of the last attempt.
    fn take_error(&mut self) -> Error {
        let failures = self.failures.take();
        failures.map_or_else(Error::shut_down, FailureLog::into_error)
    }
}

/// What follows after a failed attempt.
enum AfterFailure {
    /// The failure shows that another attempt succeeded.
    Succeeded,
    Retry(RetryPlan),
    /// The attempt is not retried.
    Fail,
    /// The client was shut down. Carries the error of the call.
    ShutDown(Error),
}

/// Returns whether an error may concern the member or a proxy in front of it, and not only the request.
fn concerns_member(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoLeader
            | ErrorKind::Stopped
            | ErrorKind::ServerUnavailable
            | ErrorKind::ConnectionLost
            | ErrorKind::Protocol
    )
}
