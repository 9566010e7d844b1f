//! The path of a request: pick a member, send, classify the failure, retry.
//!
//! Everything runs on the caller's own task, without a mailbox in between. Actors take part only in exceptional cases:
//! the connection actor when a call is slow, the balancer when no member is ready, the retry actor when a retry has to
//! wait. A slow request that may be repeated is hedged: a copy goes to another member, and the first response wins.

mod attempt;
mod call_state;
mod copies;
mod first_ready;
mod free_stream;
mod hedge;
pub(crate) mod in_flight_limit;
mod named_member;
mod oldest_state;
mod pick;
mod retry_wait;
pub(crate) mod tokens;

use std::{sync::Arc, time::Duration};

use actix::Addr;
use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;

use crate::{
    balancer::{BalancePolicy, BalancerActor, ReadySetCell},
    connection::{Connection, ConnectionContext, foreign_cluster_error},
    error::{Error, ErrorKind, Outcome},
    proto::{ResponseHeader, rpc::Rpc},
    retry::{
        RetryPolicy, actor::RetryActor, budget::RetryBudget, failure_log::FailureLog,
        pushback::Pushback,
    },
    transport::{
        Endpoint,
        channel::{Metadata, StreamUse},
        grpc::{RpcFailure, message_size},
    },
};
use call_state::{AfterFailure, CallState};
use copies::CopiesFailed;
use in_flight_limit::InFlightLimit;
pub(crate) use oldest_state::OldestState;
use tokens::Tokens;

/// Longest timeout. The deadline of a longer one could overflow `Instant`.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Returns the deadline of a timeout that starts now.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_TIMEOUT)
}

/// A response message, whose header contains the cluster id and the raft term.
pub(crate) trait WireResponse: Message + Default + 'static {
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
    pub(crate) fn unary<R: WireResponse>(
        &self,
        rpc: Rpc,
        body: Bytes,
        timeout: Duration,
    ) -> impl Future<Output = Result<R, Error>> {
        self.unary_not_older(rpc, body, timeout, None)
    }

    /// Like [`unary`](Self::unary), for a read whose response must not be older than this state. An older response is a
    /// failed attempt: the read is sent to another member at once, until a quorum of them was behind. Then it fails with
    /// [`ErrorKind::StaleRead`], or at once with [`ErrorKind::RevisionRegressed`] if a quorum confirmed the response.
    pub(crate) async fn unary_not_older<R: WireResponse>(
        &self,
        rpc: Rpc,
        body: Bytes,
        timeout: Duration,
        oldest: Option<&OldestState>,
    ) -> Result<R, Error> {
        let mut call = CallState {
            rpc,
            started: Instant::now(),
            deadline: deadline_in(timeout),
            body_size: body.len(),
            oldest,
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
                self.pick(rpc.leaderless, call.failures.as_deref(), StreamUse::Call)
            else {
                drop(in_flight);
                let ready = Box::pin(self.await_candidate(rpc.leaderless, deadline)).await;
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
            Box::pin(self.prepare_retry(&call, &token, plan)).await?;
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
        // A login carries no token, so its response shows nothing about tokens.
        if self.tokens.are_sent() {
            connection.token_accepted();
            connection.record_token_response();
        }
        self.accept(rpc, response, connection)
    }

    /// Records a failed attempt. `other_in_flight` is whether another copy of the request may have been sent and is
    /// still in flight.
    fn record_failure(
        &self,
        call: &mut CallState<'_>,
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
            connection.record_token_response();
        }
        if concerns_member(failure.error.kind()) {
            connection.request_probe();
        }
        let (rpc, members) = (call.rpc, self.member_count());
        let log = call
            .failures
            .get_or_insert_with(|| Box::new(FailureLog::new(rpc, members)));
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

    /// Adds the user to the error of a request that lacks a permission, and checks which message was too large.
    fn add_context(&self, mut failure: RpcFailure, body_size: usize) -> RpcFailure {
        failure.error = failure.error.with_request_size(message_size(body_size));
        if failure.error.kind() == ErrorKind::PermissionDenied {
            failure.error = failure.error.with_user(self.context.token.user());
        }
        failure
    }

    /// Returns the error of a call that received no token in time. If no member is ready, that is the reason.
    fn no_token_error(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::DeadlineExceeded && self.ready_set.load().ready.is_empty() {
            return self.none_ready();
        }
        error
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
