//! Retry policies, which the user can replace.

use std::{fmt::Debug, time::Duration};

use super::{RetryDecision, RpcClass, pushback::Pushback};
use crate::error::{Code, ErrorKind, Outcome};

/// Decides whether and when a failed attempt is retried, and whether a late one is hedged.
///
/// Called on the caller's task; it must not block.
///
/// A *hedge* is a copy of a request whose response is late, sent to another member. The first copy stays in flight, the
/// first response wins, and the other copy is cancelled. Hedging protects calls from a slow member as retries protect
/// them from a failed one:
/// - Hedged are requests with the classes [`Read`](RpcClass::Read), [`Idempotent`](RpcClass::Idempotent),
///   [`Grant`](RpcClass::Grant) and [`Revoke`](RpcClass::Revoke), except those that name their member.
/// - At most two copies are in flight. If one fails, the call waits for the other; a further copy is sent if the
///   other is late, too. If both have failed, the call is retried.
/// - With one endpoint, nothing is hedged.
///
/// This is not gRPC's `hedgingPolicy`, which sends copies to any server after a fixed delay; here the delay follows the
/// round trips of the connection, and copies go to different members.
/// [`ClientBuilder::hedging`](crate::client::ClientBuilder::hedging) turns it off.
///
/// A policy cannot change the rules on which the client's guarantees rest:
/// - a write ([`RpcClass::Mutation`]) whose outcome is [`Outcome::Unknown`] is never sent again;
/// - a call ends with its deadline, and with the client;
/// - a server's [`Pushback`] is obeyed;
/// - the retry budget of the client limits the retries and hedges of all policies together.
pub trait RetryPolicy: Debug + Send + Sync + 'static {
    /// Returns the decision for a failed attempt. [`FailedAttempt::standard`] is the default decision.
    fn decide(&self, attempt: &FailedAttempt) -> RetryDecision;

    /// Returns whether a copy of a late request may be sent to another member. `rpc` is its path, `attempts` the number
    /// of its attempts, including those in flight. Called only for requests that may be repeated. Default: `true`.
    fn allows_hedge(&self, rpc: &str, attempts: u32) -> bool {
        let _ = (rpc, attempts);
        true
    }

    /// Called when a call succeeded, at its first or a later attempt. `rpc` is its path. Default: does nothing.
    fn succeeded(&self, rpc: &str) {
        let _ = rpc;
    }
}

/// A failed attempt, the input of a [`RetryPolicy`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Path of the RPC, such as `/etcdserverpb.KV/Range`.
    pub rpc: &'static str,
    /// Whether the request can safely be sent twice.
    pub class: RpcClass,
    /// What went wrong.
    pub kind: ErrorKind,
    /// gRPC code of the server's response; `None` if the error is the client's own.
    pub code: Option<Code>,
    /// Whether the request can have been applied.
    pub outcome: Outcome,
    /// Decision of the client's standard rules.
    pub standard: RetryDecision,
    /// Number of the attempt; the first is 1.
    pub number: u32,
    /// Number of retries since the first attempt, or since the server's last pushback.
    pub retries_since_pushback: u32,
    /// Time since the call began.
    pub elapsed: Duration,
    /// Number of endpoints of the client.
    pub members: usize,
    /// Pushback of the server, if it sent one.
    pub pushback: Option<Pushback>,
    /// A random number between 0 and 1, for jitter.
    pub random: f64,
}

/// The default policy: retries every request that is safe to repeat, as long as the error is transient and the deadline
/// allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardRetry;

impl RetryPolicy for StandardRetry {
    fn decide(&self, attempt: &FailedAttempt) -> RetryDecision {
        // The only endpoint is a learner: there is no other member to try.
        if attempt.kind == ErrorKind::NotSupportedForLearner && attempt.members <= 1 {
            return RetryDecision::Fail;
        }
        attempt.standard
    }
}

/// Never retries, not even a request that was not sent, and never hedges.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRetry;

impl RetryPolicy for NoRetry {
    fn decide(&self, _: &FailedAttempt) -> RetryDecision {
        RetryDecision::Fail
    }

    fn allows_hedge(&self, _: &str, _: u32) -> bool {
        false
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::decision::decide, *};

    pub(in crate::retry) fn attempt(
        class: RpcClass,
        kind: ErrorKind,
        outcome: Outcome,
    ) -> FailedAttempt {
        FailedAttempt {
            standard: decide(class, kind, outcome),
            rpc: "/etcdserverpb.KV/Range",
            class,
            kind,
            code: None,
            outcome,
            number: 1,
            retries_since_pushback: 0,
            elapsed: Duration::ZERO,
            members: 3,
            pushback: None,
            random: 0.5,
        }
    }

    #[test]
    fn learner_error_is_retried_only_on_another_member() {
        let mut refused = attempt(
            RpcClass::Read,
            ErrorKind::NotSupportedForLearner,
            Outcome::Rejected,
        );
        assert_eq!(StandardRetry.decide(&refused), RetryDecision::NextMember);
        refused.members = 1;
        assert_eq!(StandardRetry.decide(&refused), RetryDecision::Fail);
    }

    #[test]
    fn standard_policy_follows_the_table() {
        for &kind in ErrorKind::ALL {
            for class in [RpcClass::Read, RpcClass::Mutation] {
                for outcome in [Outcome::NotSent, Outcome::Rejected, Outcome::Unknown] {
                    let fails = decide(class, kind, outcome) == RetryDecision::Fail;
                    let decision = StandardRetry.decide(&attempt(class, kind, outcome));
                    assert_eq!(decision == RetryDecision::Fail, fails, "{class:?} {kind:?}");
                }
            }
        }
    }
}
