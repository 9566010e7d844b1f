//! The state of one call over all its attempts.

use tokio::time::Instant;

use super::{OldestState, WireResponse};
use crate::{
    connection::Connection,
    error::Error,
    proto::rpc::Rpc,
    retry::failure_log::{FailureLog, RetryPlan},
    transport::grpc::RpcFailure,
};

/// One call: a request with its retries and copies.
pub(super) struct CallState<'a> {
    pub(super) rpc: Rpc,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    /// Size of the encoded request.
    pub(super) body_size: usize,
    /// Oldest state that the response may show; `None` if it may be any.
    pub(super) oldest: Option<&'a OldestState>,
    /// Boxed: few calls fail, and thousands may be in flight.
    pub(super) failures: Option<Box<FailureLog>>,
}

impl CallState<'_> {
    /// Fails if the response shows an older state than the call accepts.
    pub(super) fn check_age<R: WireResponse>(
        &self,
        response: R,
        connection: &Connection,
    ) -> Result<R, RpcFailure> {
        match self.oldest {
            None => Ok(response),
            Some(oldest) => oldest.check(response, &connection.endpoint),
        }
    }

    pub(super) fn failed_attempts(&self) -> u32 {
        self.failures.as_ref().map_or(0, |log| log.attempts())
    }

    /// Returns whether the next attempt should use another member, if there is one.
    pub(super) fn avoids(&self, connection: &Connection) -> bool {
        let failures = self.failures.as_ref();
        failures.is_some_and(|log| log.avoids(connection.id.0))
    }

    /// Returns whether the last failure ends the call even if a copy of the request is in flight.
    pub(super) fn is_over(&self) -> bool {
        let failures = self.failures.as_ref();
        failures.is_some_and(|log| log.last_is_final())
    }

    /// Records a copy in flight that is cancelled because the call has failed.
    pub(super) fn record_cancelled(&mut self, may_be_sent: bool) {
        if let Some(log) = &mut self.failures {
            log.record_cancelled(may_be_sent);
        }
    }

    /// Adds the operation, and the outcome of earlier attempts, to an error that ends the call.
    pub(super) fn complete(&self, error: Error) -> Error {
        match &self.failures {
            None => error.with_rpc(self.rpc),
            Some(log) => log.complete(error),
        }
    }

    /// Returns the error of the call: that of the last attempt.
    pub(super) fn take_error(&mut self) -> Error {
        let failures = self.failures.take();
        failures.map_or_else(Error::shut_down, |log| log.into_error())
    }
}

/// What follows after a failed attempt.
pub(super) enum AfterFailure {
    /// The failure shows that another attempt succeeded.
    Succeeded,
    Retry(RetryPlan),
    /// The attempt is not retried.
    Fail,
    /// The client was shut down. Carries the error of the call.
    ShutDown(Error),
}
