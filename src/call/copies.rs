//! Sends the copies of one request, and waits for the first response.

use std::{
    future::poll_fn,
    ops::Deref,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::{
    AfterFailure, CallState, Caller, WireResponse,
    attempt::{Attempt, SentRequest, response},
    hedge::{HedgeSchedule, may_be_hedged},
};
use crate::{
    balancer::ReadyEndpoints,
    connection::{Connection, Verdict},
    error::Error,
    retry::failure_log::RetryPlan,
    transport::{
        channel::{Metadata, RequestTracker, StreamUse},
        grpc::RpcFailure,
    },
};

/// The result of a request without a response.
pub(super) enum CopiesFailed {
    /// The request is sent again.
    Retry(RetryPlan),
    Fail(Error),
}

/// One copy of a request in flight.
struct CopyInFlight<'a, R> {
    connection: Arc<Connection>,
    tracker: Tracker<'a>,
    result: Pin<Box<dyn Future<Output = Result<R, RpcFailure>> + Send + 'a>>,
}

/// The tracker of a copy. The tracker of the first copy is borrowed, so that a request in time needs no allocation.
enum Tracker<'a> {
    First(&'a RequestTracker),
    Hedge(Arc<RequestTracker>),
}

impl Deref for Tracker<'_> {
    type Target = RequestTracker;

    fn deref(&self) -> &RequestTracker {
        match self {
            Self::First(tracker) => tracker,
            Self::Hedge(tracker) => tracker,
        }
    }
}

impl Caller {
    /// Sends a request to a member. If the response is late and the request may be repeated, sends a copy to another
    /// member. Returns the first response.
    pub(super) async fn send<R: WireResponse>(
        &self,
        call: &mut CallState<'_>,
        connection: &Arc<Connection>,
        metadata: &Metadata,
        body: &Bytes,
    ) -> Result<R, CopiesFailed> {
        let began = Instant::now();
        let tracker = RequestTracker::default();
        let attempt = Attempt {
            connection,
            rpc: call.rpc,
            deadline: call.deadline,
            tracker: &tracker,
        };
        let term = connection.term_mark();
        let channel = &connection.channel;
        let request = channel.unary::<R>(call.rpc.path, metadata, body.clone(), &tracker);
        let mut request = std::pin::pin!(Some(request));
        let mut timer = std::pin::pin!(sleep_until(attempt.suspect_at(began)));
        tokio::select! {
            biased;
            response = response(&mut request) => match response
                .and_then(|response| call.check_age(response, connection))
            {
                Ok(response) => {
                    connection.observe_duration(began.elapsed());
                    return self.succeed(call.rpc, response, connection).map_err(CopiesFailed::Fail);
                }
                Err(failure) => return self.fail(call, connection, failure),
            },
            () = &mut timer => {}
        }
        // Boxed, because it is rare and would make the future of every call large.
        let sent = SentRequest {
            request,
            timer,
            began,
            term,
        };
        Box::pin(self.wait_for_copies(call, attempt, sent, metadata, body)).await
    }

    /// Handles the failure of the only copy in flight.
    pub(super) fn fail<R: WireResponse>(
        &self,
        call: &mut CallState<'_>,
        connection: &Connection,
        failure: RpcFailure,
    ) -> Result<R, CopiesFailed> {
        match self.record_failure(call, connection, failure, false) {
            AfterFailure::Succeeded => Ok(R::default()),
            AfterFailure::Retry(plan) => Err(CopiesFailed::Retry(plan)),
            AfterFailure::Fail => Err(CopiesFailed::Fail(call.take_error())),
            AfterFailure::ShutDown(error) => Err(CopiesFailed::Fail(error)),
        }
    }

    async fn wait_for_copies<R, F>(
        &self,
        call: &mut CallState<'_>,
        attempt: Attempt<'_>,
        sent: SentRequest<'_, F>,
        metadata: &Metadata,
        body: &Bytes,
    ) -> Result<R, CopiesFailed>
    where
        R: WireResponse,
        F: Future<Output = Result<R, RpcFailure>> + Send,
    {
        let first = attempt.connection;
        let allowed = self.hedging && may_be_hedged(call.rpc, self.named_endpoint.is_some());
        let mut schedule = HedgeSchedule::new(sent.began + first.timing.hedge_after(), allowed);
        let mut first_health = first.watch_health();
        let mut copies = vec![CopyInFlight {
            connection: first.clone(),
            tracker: Tracker::First(attempt.tracker),
            result: Box::pin(attempt.wait(sent)),
        }];
        let mut renew_token = false;
        loop {
            if first_health.borrow_and_update().verdict == Verdict::NotServing
                && Arc::ptr_eq(&copies[0].connection, first)
            {
                schedule.oldest_copy_is_late(Instant::now());
            }
            // A response that is arriving would be as large from another member.
            let arriving = copies.iter().any(|copy| copy.tracker.response_started());
            let due = schedule.due().filter(|_| !arriving);
            let (position, result) = tokio::select! {
                biased;
                ended = first_result(&mut copies) => ended,
                // Never fails: `first` holds the sender.
                _ = first_health.changed() => continue,
                () = at(due), if due.is_some() => {
                    match self.send_copy(call, &copies, metadata, body) {
                        Some(copy) => {
                            schedule.copy_sent(Instant::now() + copy.connection.timing.hedge_after());
                            copies.push(copy);
                        }
                        None => schedule.postpone(Instant::now()),
                    }
                    continue;
                }
            };
            let ended = copies.remove(position);
            let checked = result.and_then(|response| call.check_age(response, &ended.connection));
            let failure = match checked {
                Ok(response) => {
                    let accepted = self.succeed(call.rpc, response, &ended.connection);
                    return accepted.map_err(CopiesFailed::Fail);
                }
                Err(failure) => failure,
            };
            let other_in_flight = copies.iter().any(|copy| copy.tracker.may_be_sent());
            let next = match self.record_failure(call, &ended.connection, failure, other_in_flight)
            {
                AfterFailure::Succeeded => return Ok(R::default()),
                AfterFailure::ShutDown(error) => return Err(CopiesFailed::Fail(error)),
                AfterFailure::Fail if copies.is_empty() || call.is_over() => {
                    for copy in &copies {
                        call.record_cancelled(copy.tracker.may_be_sent());
                    }
                    return Err(CopiesFailed::Fail(call.take_error()));
                }
                AfterFailure::Retry(plan) if copies.is_empty() => {
                    let renew_token = renew_token || plan.renew_token;
                    return Err(CopiesFailed::Retry(RetryPlan {
                        renew_token,
                        ..plan
                    }));
                }
                AfterFailure::Retry(plan) if !plan.renew_token => Some(Instant::now() + plan.delay),
                // Another copy would have the same token.
                AfterFailure::Retry(_) => {
                    renew_token = true;
                    None
                }
                AfterFailure::Fail => None,
            };
            schedule.copy_failed(position, next);
        }
    }

    /// Sends a copy of a late request to a member that has none. Returns `None` if there is no such member, or if the
    /// retry policy or the budget forbid it.
    fn send_copy<'a, R: WireResponse>(
        &self,
        call: &CallState<'_>,
        copies: &[CopyInFlight<'_, R>],
        metadata: &Metadata,
        body: &Bytes,
    ) -> Option<CopyInFlight<'a, R>> {
        let in_flight = u32::try_from(copies.len()).unwrap_or(u32::MAX);
        let attempts = call.failed_attempts().saturating_add(in_flight);
        if !self.retry_policy.allows_hedge(call.rpc.path, attempts) {
            return None;
        }
        let unused = |connection: &Arc<Connection>| {
            let mut copies = copies.iter();
            copies.all(|copy| lead_to_different_members(&copy.connection, connection))
                && !call.avoids(connection)
                && self.accepts_token(connection)
        };
        let mut others = self.other_members(unused);
        others.retain(|other| other.channel.has_free_slot(StreamUse::Call));
        if others.is_empty() {
            return None;
        }
        let picked = self.policy.pick(&ReadyEndpoints::some(&others));
        let connection = others.swap_remove(picked % others.len());
        let slot = connection.channel.try_slot(StreamUse::Call)?;
        let now = Instant::now();
        if !self.budget.take_for_hedge(now.into_std()) {
            return None;
        }
        tracing::debug!(
            rpc = call.rpc.path,
            endpoint = %connection.endpoint,
            late_endpoint = %copies[0].connection.endpoint,
            elapsed = ?(now - call.started),
            attempts = attempts + 1,
            "hedge sent"
        );
        let tracker = Arc::new(RequestTracker::default());
        let metadata = Metadata {
            timeout: Some(call.deadline.saturating_duration_since(now)),
            ..metadata.clone()
        };
        let (rpc, deadline, body) = (call.rpc, call.deadline, body.clone());
        let (member, progress) = (connection.clone(), tracker.clone());
        let result = async move {
            let _slot = slot;
            let attempt = Attempt {
                connection: &member,
                rpc,
                deadline,
                tracker: &progress,
            };
            attempt.run::<R>(&metadata, body).await
        };
        Some(CopyInFlight {
            connection,
            tracker: Tracker::Hedge(tracker),
            result: Box::pin(result),
        })
    }
}

/// Returns whether two connections lead to different members. Two connections of one endpoint can do so behind a load
/// balancer; the ids of the members show it.
fn lead_to_different_members(one: &Connection, other: &Connection) -> bool {
    let member = |connection: &Connection| connection.health().status.map(|status| status.member);
    if one.id != other.id {
        return true;
    }
    let members = member(one).zip(member(other));
    members.is_some_and(|(one, other)| one != other)
}

/// Waits for the first copy that ends. Returns its position and its result.
fn first_result<R>(
    copies: &mut [CopyInFlight<'_, R>],
) -> impl Future<Output = (usize, Result<R, RpcFailure>)> {
    poll_fn(move |context: &mut Context<'_>| {
        for (position, copy) in copies.iter_mut().enumerate() {
            if let Poll::Ready(result) = copy.result.as_mut().poll(context) {
                return Poll::Ready((position, result));
            }
        }
        Poll::Pending
    })
}

/// Waits until this time, or for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
