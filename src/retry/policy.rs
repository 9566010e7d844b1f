//! The user's say in retrying.

use super::pushback::Pushback;
use super::{
    RpcClass,
    table::{self, Decision},
};
use crate::error::{Code, ErrorKind, Outcome};
use std::fmt::Debug;
use std::time::Duration;

/// Decides whether a failed attempt is made again, and when.
///
/// It is asked after every failed attempt, on the task of the caller: it must not block.
///
/// Some rules are not a policy's to change, so that no policy can break the client's promises:
/// - a write ([`RpcClass::Mutation`]) whose outcome is [`Outcome::Unknown`] is never sent again;
/// - a call ends with its deadline, and with the client;
/// - a server's [`Pushback`] is honoured;
/// - the client's retry budget holds for all policies together.
pub trait RetryPolicy: Debug + Send + Sync + 'static {
    /// What to do after this attempt.
    fn decide(&self, attempt: &Attempt) -> RetryDecision;

    /// A call succeeded, at its first attempt or later. `rpc` is its path. Does nothing by default.
    fn succeeded(&self, rpc: &str) {
        let _ = rpc;
    }
}

/// A failed attempt, as a policy sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// The path of the RPC, as in `/etcdserverpb.KV/Range`.
    pub rpc: &'static str,
    /// What making the request twice would do.
    pub class: RpcClass,
    /// What went wrong.
    pub kind: ErrorKind,
    /// The server's gRPC code; `None` if the client itself found out.
    pub code: Option<Code>,
    /// Whether the request can have been applied.
    pub outcome: Outcome,
    /// Which attempt it was; the first is 1.
    pub number: u32,
    /// How many retries were made since the first attempt, or since the server last said when to come back.
    pub retries_since_pushback: u32,
    /// Time since the call began.
    pub elapsed: Duration,
    /// How many endpoints the client has.
    pub members: usize,
    /// What the server asked for, if it did.
    pub pushback: Option<Pushback>,
    /// A random number in 0..1, for jitter.
    pub random: f64,
}

/// A policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryDecision {
    /// Try again with the client's own timing: straight to the next member until a quorum has failed, then after a
    /// growing wait, cut short when a member becomes ready.
    Retry,
    /// Try again after this long.
    RetryAfter(Duration),
    /// Give the error to the caller.
    Fail,
}

/// The default: whatever can be repeated without harm is, as long as the reason may pass and the deadline allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardRetry;

impl RetryPolicy for StandardRetry {
    fn decide(&self, attempt: &Attempt) -> RetryDecision {
        // The only endpoint is a learner: there is no other member to go to.
        if attempt.kind == ErrorKind::NotSupportedForLearner && attempt.members <= 1 {
            return RetryDecision::Fail;
        }
        match table::decide(attempt.class, attempt.kind, attempt.outcome) {
            Decision::Retry(_) | Decision::Refresh => RetryDecision::Retry,
            Decision::Fail => RetryDecision::Fail,
        }
    }
}

/// Every failure goes to the caller at once, even of what was never sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRetry;

impl RetryPolicy for NoRetry {
    fn decide(&self, _: &Attempt) -> RetryDecision {
        RetryDecision::Fail
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::retry) fn attempt(class: RpcClass, kind: ErrorKind, outcome: Outcome) -> Attempt {
        Attempt {
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
    fn a_learner_is_left_for_another_member_only_if_there_is_one() {
        let mut refused = attempt(
            RpcClass::Read,
            ErrorKind::NotSupportedForLearner,
            Outcome::Rejected,
        );
        assert_eq!(StandardRetry.decide(&refused), RetryDecision::Retry);
        refused.members = 1;
        assert_eq!(StandardRetry.decide(&refused), RetryDecision::Fail);
    }

    #[test]
    fn the_standard_policy_is_the_table() {
        for &kind in ErrorKind::ALL {
            for class in [RpcClass::Read, RpcClass::Mutation] {
                for outcome in [Outcome::NotSent, Outcome::Rejected, Outcome::Unknown] {
                    let fails = table::decide(class, kind, outcome) == Decision::Fail;
                    let decision = StandardRetry.decide(&attempt(class, kind, outcome));
                    assert_eq!(decision == RetryDecision::Fail, fails, "{class:?} {kind:?}");
                }
            }
        }
    }
}
