//! Decides what to do after a member refused a token: log in again, or avoid the member.
//!
//! A member refuses a valid token if it lost the token in a restart; a new login solves that. A member that also
//! refuses fresh tokens (its clock or its keys differ) would cause one login per request. It is avoided while another
//! member is ready, for longer after each refusal.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::runtime::backoff::Backoff;

/// A token that was issued more recently is fresh: a new one would be refused, too.
const FRESH: Duration = Duration::from_secs(1);
/// Time for which a refusing member is avoided.
const AVOIDANCE: Backoff = Backoff::new(FRESH, Duration::from_secs(60));

/// What to do after a member refused a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalDecision {
    /// The token may be void for all members: log in again.
    Renew,
    /// The member is at fault: send the request with the same token to another member.
    AvoidMember,
}

/// The refused tokens of one connection.
#[derive(Debug)]
pub(super) struct TokenRefusals {
    origin: Instant,
    /// Whether a token was refused since one was accepted. Read by every request.
    refused: AtomicBool,
    /// Time until which the member is avoided, in milliseconds after `origin`.
    avoided_until: AtomicU64,
    history: Mutex<RefusalHistory>,
}

#[derive(Debug, Default)]
struct RefusalHistory {
    /// Number of tokens refused since one was accepted.
    refusals: u32,
    /// Generation of the refused token that the last login replaced.
    renewed_generation: u64,
}

impl TokenRefusals {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            refused: AtomicBool::new(false),
            avoided_until: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }

    /// Returns whether requests with a token should use another member.
    pub(super) fn is_avoided(&self, now: impl FnOnce() -> Instant) -> bool {
        self.refused.load(Ordering::Relaxed)
            && self.millis(now()) < self.avoided_until.load(Ordering::Relaxed)
    }

    /// Records that the member accepted a token.
    pub(super) fn accepted(&self) {
        if !self.refused.load(Ordering::Relaxed) {
            return;
        }
        let mut history = self.history();
        history.refusals = 0;
        self.avoided_until.store(0, Ordering::Relaxed);
        self.refused.store(false, Ordering::Relaxed);
    }

    /// Records that the member refused the token of this generation, issued `age` ago.
    pub(super) fn refused(&self, generation: u64, age: Duration, now: Instant) -> RefusalDecision {
        if self.is_avoided(|| now) {
            return RefusalDecision::AvoidMember;
        }
        let mut history = self.history();
        self.refused.store(true, Ordering::Relaxed);
        if generation == history.renewed_generation {
            // Requests with this token were in flight together.
            return RefusalDecision::Renew;
        }
        let min_age = match history.refusals {
            0 => FRESH,
            _ => AVOIDANCE.delay(u32::MAX, 0.5),
        };
        let delay = AVOIDANCE.delay(history.refusals, 0.5);
        history.refusals = history.refusals.saturating_add(1);
        if age >= min_age {
            history.renewed_generation = generation;
            RefusalDecision::Renew
        } else {
            self.avoid_until(now + delay);
            RefusalDecision::AvoidMember
        }
    }

    /// Avoids the member until a login that it caused has finished.
    pub(super) fn avoid_during_login(&self, now: Instant) {
        self.avoid_until(now + FRESH);
    }

    fn avoid_until(&self, until: Instant) {
        let until = self.millis(until);
        self.avoided_until.fetch_max(until, Ordering::Relaxed);
        self.refused.store(true, Ordering::Relaxed);
    }

    fn millis(&self, at: Instant) -> u64 {
        let elapsed = at.saturating_duration_since(self.origin).as_millis();
        u64::try_from(elapsed).unwrap_or(u64::MAX)
    }

    fn history(&self) -> std::sync::MutexGuard<'_, RefusalHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{RefusalDecision::*, *};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lost_token_is_renewed_once() {
        let start = Instant::now();
        let member = TokenRefusals::new(start);
        for _ in 0..3 {
            assert_eq!(member.refused(4, SECOND, start), Renew);
        }
        assert!(!member.is_avoided(|| start));
        member.accepted();
        assert_eq!(member.refused(5, SECOND, start), Renew);
    }

    #[test]
    fn member_that_refuses_fresh_token_is_avoided() {
        let start = Instant::now();
        let member = TokenRefusals::new(start);
        assert_eq!(member.refused(4, Duration::ZERO, start), AvoidMember);
        assert!(member.is_avoided(|| start + SECOND / 2));
        assert!(!member.is_avoided(|| start + SECOND));
        member.accepted();
        assert!(!member.is_avoided(|| start));
    }

    #[test]
    fn refusing_member_costs_one_login_per_minute() {
        let start = Instant::now();
        let member = TokenRefusals::new(start);
        let (mut generation, mut issued) = (1, start);
        let mut logins = 0;
        for second in 10..310 {
            let now = start + SECOND * second;
            if !member.is_avoided(|| now) && member.refused(generation, now - issued, now) == Renew
            {
                (generation, issued) = (generation + 1, now);
                logins += 1;
            }
        }
        assert!((2..=6).contains(&logins), "{logins}");
    }
}
