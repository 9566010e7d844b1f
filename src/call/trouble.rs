//! A call that has failed at least once: what was tried, and what it has to tell in the end.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    connection::{Connection, EndpointId},
    error::{Error, ErrorKind, Outcome},
    proto::rpc::Rpc,
    retry::{
        RetryPolicy,
        attempts::{Attempts, Failure as Failed, Next},
        pushback::Pushback,
    },
    transport::grpc::RpcFailure,
};

/// What went wrong with a call so far.
pub(super) struct Trouble {
    pub(super) attempts: Attempts,
    pub(super) avoided: Vec<EndpointId>,
    pub(super) last: Option<Error>,
    /// How many attempts took too long.
    pub(super) slow: u32,
    started: Instant,
    pub(super) span: tracing::Span,
}

impl Trouble {
    pub(super) fn new(rpc: Rpc, started: Instant, members: usize) -> Self {
        Self {
            attempts: Attempts::new(rpc.path, rpc.class, members),
            avoided: Vec::new(),
            last: None,
            slow: 0,
            started,
            span: tracing::debug_span!("call", rpc = rpc.path),
        }
    }

    pub(super) fn failed(
        &mut self,
        policy: &dyn RetryPolicy,
        connection: &Connection,
        failure: RpcFailure,
        members: usize,
    ) -> Next {
        let RpcFailure { error, pushback } = failure;
        let _inside = self.span.enter();
        tracing::debug!(endpoint = %connection.endpoint, %error, "attempt failed");
        let failed = Failed {
            kind: error.kind(),
            code: error.code(),
            outcome: error.outcome(),
            member: Some(connection.id.0),
            pushback: pushback.map(|value| Pushback::parse(value.as_bytes())),
            elapsed: self.started.elapsed(),
        };
        if error.kind() == ErrorKind::MemberUnresponsive {
            self.slow = self.slow.saturating_add(1);
        }
        self.last = Some(error);
        self.attempts.set_members(members);
        let next = self.attempts.failed(policy, &failed, &mut fastrand::f64);
        self.avoided.push(connection.id);
        if !matches!(next, Next::Retry(Duration::ZERO)) || self.avoided.len() >= members {
            self.avoided.clear();
        }
        next
    }

    pub(super) fn verdict(&mut self) -> Error {
        let last = self.last.take().unwrap_or_else(Error::shut_down);
        let outcome = self.attempts.outcome(last.outcome());
        last.with_outcome(outcome)
            .with_attempts(self.attempts.made())
    }

    pub(super) fn out_of_time(&self) -> Error {
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
