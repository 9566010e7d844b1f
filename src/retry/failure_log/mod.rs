//! The failed attempts of one call. Combines decision, policy, pushback and delays.

use std::time::Duration;

use super::{
    FailedAttempt, RetryDecision, RetryPolicy,
    decision::{decide, may_be_split, may_repeat, outcome_of_call, remedy, shows_other_success},
    pushback::Pushback,
    quorum_backoff::QuorumBackoff,
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::rpc::{Rpc, RpcClass},
};

/// How a call is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPlan {
    /// Delay before the next attempt; the retry budget can add to it.
    pub(crate) delay: Duration,
    /// Whether a new token is needed first.
    pub(crate) renew_token: bool,
}

/// The failed attempts of one call. Created at the first failure.
#[derive(Clone, Debug)]
pub(crate) struct FailureLog {
    rpc: Rpc,
    members: usize,
    backoff: QuorumBackoff,
    attempts: u32,
    retries_since_pushback: u32,
    /// Whether the token was renewed after the last failure.
    token_renewed: bool,
    any_unknown: bool,
    /// Members not to try next, as long as there are others.
    avoided: Vec<u64>,
    /// Member of the last failure.
    last_member: u64,
    last: Option<Error>,
}

impl FailureLog {
    pub(crate) fn new(rpc: Rpc, members: usize) -> Self {
        Self {
            rpc,
            members,
            backoff: QuorumBackoff::new(members),
            attempts: 0,
            retries_since_pushback: 0,
            token_renewed: false,
            any_unknown: false,
            avoided: Vec::new(),
            last_member: 0,
            last: None,
        }
    }

    /// Sets the number of endpoints, which can change during a call.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.members = members;
        self.backoff.set_members(members);
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns whether the next attempt should use another member, if there is one.
    pub(crate) fn avoids(&self, member: u64) -> bool {
        self.avoided.contains(&member)
    }

    /// Returns the kind of the last failure.
    pub(crate) fn last_kind(&self) -> Option<ErrorKind> {
        self.last.as_ref().map(Error::kind)
    }

    /// Returns the member and the kind of the last failure.
    pub(crate) fn last_failure(&self) -> Option<(u64, ErrorKind)> {
        Some((self.last_member, self.last_kind()?))
    }

    /// Returns whether this failure shows that another attempt succeeded: an earlier one, or one that is in flight.
    pub(crate) fn shows_success(&self, error: &Error, other_in_flight: bool) -> bool {
        let other_unknown = self.any_unknown || other_in_flight;
        shows_other_success(self.rpc.class, error.kind(), other_unknown)
    }

    /// Records an attempt in flight that is cancelled because the call has failed.
    pub(crate) fn record_cancelled(&mut self, may_be_sent: bool) {
        self.attempts = self.attempts.saturating_add(1);
        self.any_unknown |= may_be_sent && self.rpc.is_write();
    }

    /// Returns whether the last failure ends the call, even if another attempt is in flight: every member would return
    /// the same error, or the call is over.
    pub(crate) fn last_is_final(&self) -> bool {
        let kind = self.last_kind();
        kind.is_some_and(|kind| remedy(kind) == RetryDecision::Fail)
    }

    /// Records a failed attempt on a member. Returns how to retry, or `None` if the call fails with
    /// [`into_error`](Self::into_error). `random` returns numbers between 0 and 1.
    pub(crate) fn record(
        &mut self,
        policy: &dyn RetryPolicy,
        (member, error): (u64, Error),
        pushback: Option<Pushback>,
        elapsed: Duration,
        random: &mut impl FnMut() -> f64,
    ) -> Option<RetryPlan> {
        let error = if may_be_split(self.rpc.split_rejection, error.kind()) {
            error.with_outcome(Outcome::Unknown)
        } else {
            error
        };
        self.any_unknown |= error.outcome() == Outcome::Unknown;
        self.attempts = self.attempts.saturating_add(1);
        let attempt = FailedAttempt {
            rpc: self.rpc.path,
            class: self.rpc.class,
            kind: error.kind(),
            code: error.code(),
            outcome: error.outcome(),
            standard: decide(self.rpc.class, error.kind(), error.outcome()),
            number: self.attempts,
            retries_since_pushback: self.retries_since_pushback,
            elapsed,
            members: self.members,
            pushback,
            random: random(),
        };
        self.last = Some(error);
        self.last_member = member;
        let plan = self.plan(policy, &attempt, member, random);
        self.avoided.push(member);
        let at_once = plan.is_some_and(|plan| plan.delay.is_zero());
        if !at_once || self.avoided.len() >= self.members {
            self.avoided.clear();
        }
        plan
    }

    fn plan(
        &mut self,
        policy: &dyn RetryPolicy,
        attempt: &FailedAttempt,
        member: u64,
        random: &mut impl FnMut() -> f64,
    ) -> Option<RetryPlan> {
        match attempt.kind {
            // Not a failure of the member. Once a quorum was behind, the caller has a better way than more attempts.
            ErrorKind::StaleRead if attempt.class == RpcClass::Read => {
                let delay = self.backoff.next(Some(member), random);
                let renew_token = false;
                return delay.is_zero().then_some(RetryPlan { delay, renew_token });
            }
            ErrorKind::RevisionRegressed => return None,
            _ => {}
        }
        // Called even if the decision is ignored below, because policies count failures.
        let decision = policy.decide(attempt);
        let call_ended = matches!(
            attempt.kind,
            ErrorKind::DeadlineExceeded | ErrorKind::Shutdown
        );
        if call_ended || !may_repeat(attempt.class, attempt.outcome) {
            return None;
        }
        let fixed_delay = match (decision, attempt.pushback) {
            (RetryDecision::Fail, _) | (_, Some(Pushback::Never)) => return None,
            (_, Some(Pushback::After(delay))) | (RetryDecision::After(delay), None) => Some(delay),
            (
                RetryDecision::NextMember | RetryDecision::Backoff | RetryDecision::RenewToken,
                None,
            ) => None,
        };
        self.retries_since_pushback = match attempt.pushback {
            Some(_) => 0,
            None => self.retries_since_pushback.saturating_add(1),
        };
        let renew_token = [attempt.standard, decision].contains(&RetryDecision::RenewToken);
        let renewed_before = self.token_renewed;
        if fixed_delay.is_none() || !renew_token {
            self.token_renewed = renew_token;
        }
        let delay = match fixed_delay {
            Some(delay) => delay,
            // The renewed token was rejected, too: the member may need time until it accepts the token.
            None if renew_token && renewed_before => self.backoff.delay(random),
            None if renew_token => Duration::ZERO,
            None if decision == RetryDecision::NextMember => {
                self.backoff.next(Some(member), random)
            }
            None => self.backoff.delay(random),
        };
        Some(RetryPlan { delay, renew_token })
    }

    /// Returns the outcome of the call if it ends with `last`.
    pub(crate) fn outcome(&self, last: Outcome) -> Outcome {
        outcome_of_call(last, self.any_unknown)
    }

    /// Adds the operation, the number of attempts and the outcome of all attempts to an error that ends the call.
    pub(crate) fn complete(&self, error: Error) -> Error {
        let outcome = self.outcome(error.outcome());
        error
            .with_rpc(self.rpc)
            .with_outcome(outcome)
            .with_attempts(self.attempts)
    }

    /// Returns the error of the call: that of the last attempt.
    pub(crate) fn into_error(mut self) -> Error {
        let last = self.last.take().unwrap_or_else(Error::shut_down);
        self.complete(last)
    }

    /// Returns the error of a call whose deadline passed between two attempts. If the last attempt was refused for its
    /// user or token, that is the reason.
    pub(crate) fn deadline_exceeded(&self) -> Error {
        if self.last.as_ref().is_some_and(Error::is_auth) {
            return self.clone().into_error();
        }
        let (outcome, reason) = match &self.last {
            Some(last) => (
                last.outcome(),
                format!(
                    "the deadline passed; the last attempt failed: {}",
                    last.brief()
                ),
            ),
            None => (
                Outcome::NotSent,
                "the deadline passed before the first attempt".to_owned(),
            ),
        };
        self.complete(Error::new(ErrorKind::DeadlineExceeded, outcome, reason))
    }
}

#[cfg(test)]
mod tests;
