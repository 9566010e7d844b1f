//! The deadline of one lease: when to send a keepalive, when the lease is at risk, when it is lost.
//!
//! The server restarts a lease's TTL when it handles a keepalive, which is after the client sent it. A deadline counted
//! from the time of sending is therefore never later than the server's own: before the deadline, the lease exists
//! unless it was revoked; after the deadline, only a response shows that it exists. A leader change extends leases, so
//! a passed deadline is reported and keepalives continue.
//!
//! A keepalive without a response times out long before TCP or HTTP/2 pings detect a failure, and the next one goes to
//! another member. At most one is in flight, because repeated keepalives slow down a cluster that is electing a leader.
//!
//! [`Deadline::next_step`] and [`Deadline::handle_response`] make every decision. The keeper calls them through
//! [`routine`], the lease's actor directly.

mod routine;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::clock::later;
use crate::{lease::LeaseLost, runtime::backoff::Backoff};

/// Shortest time to wait for a response. A round trip through a busy cluster can take this long.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_millis(300);
/// Longest time to wait for a response, for any TTL.
const MAX_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest delay before a lease at risk sends again. Short, because the cluster may recover at any time.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Delays after failed keepalives.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), MAX_RETRY_DELAY).jitter(0.5);
/// Longest TTL that etcd grants, in seconds.
const MAX_TTL: u64 = 9_000_000_000;

/// The next action of a lease. Call [`Deadline::next_step`] again after every step but `Wait`, `Lost` and `Ended`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a keepalive, to another member than the last one if `elsewhere`.
    Send { elsewhere: bool },
    /// Report that the deadline has passed without a response.
    AtRisk { deadline: Instant },
    /// Report that the lease is lost. No step follows.
    Lost(LeaseLost),
    /// Do nothing until this time.
    Wait { until: Instant },
    /// Do nothing: the end of the lease was reported before.
    Ended,
}

/// The effect of a keepalive response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseEffect {
    Renewed { deadline: Instant },
    Lost(LeaseLost),
}

#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(PartialEq))]
enum KeepAliveState {
    Due { at: Instant },
    InFlight { sent_at: Instant },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeasePhase {
    /// The deadline has not passed.
    Held,
    /// The deadline has passed, which was reported.
    AtRisk,
    /// The lease is lost, which was reported.
    Ended,
}

/// State machine of one kept lease. Every `jitter` argument is a random number between 0 and 1.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct Deadline {
    ttl: Duration,
    /// Time until which the server has the lease.
    held_until: Instant,
    /// Time after the deadline to continue keepalives. `None`: twice the TTL.
    give_up_after: Option<Duration>,
    phase: LeasePhase,
    keepalive: KeepAliveState,
    /// Number of keepalives in a row that failed or timed out.
    failures: u32,
    /// End of the last [`Step::Wait`]. A check much later means that the process was suspended.
    next_check: Instant,
    /// Earliest time to give up, set after the process was suspended.
    earliest_give_up: Option<Instant>,
}

impl Deadline {
    /// Starts the deadline of a lease that was granted by a request sent at `sent_at`. The first keepalive is early
    /// by up to half of its interval, so that leases granted together are not renewed together.
    pub(crate) fn granted(ttl: i64, sent_at: Instant, now: Instant, jitter: f64) -> Self {
        let ttl = seconds(ttl);
        let first = ttl.div_f64(3.0).mul_f64(0.5 + 0.5 * unit(jitter));
        Self {
            ttl,
            held_until: later(sent_at, ttl),
            give_up_after: None,
            phase: LeasePhase::Held,
            keepalive: KeepAliveState::Due {
                at: later(sent_at, first),
            },
            failures: 0,
            next_check: now,
            earliest_give_up: None,
        }
    }

    /// Sets how long keepalives continue after the deadline. Default: twice the TTL.
    pub(crate) fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = Some(after);
        self
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the time until which the server has the lease unless it is revoked.
    pub(crate) fn deadline(&self) -> Instant {
        self.held_until
    }

    #[cfg(test)]
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.held_until.saturating_duration_since(now)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.phase == LeasePhase::Ended
    }

    /// Returns what to do at `now`.
    pub(crate) fn next_step(&mut self, now: Instant, jitter: f64) -> Step {
        if self.is_ended() {
            return Step::Ended;
        }
        self.detect_suspension(now);
        if now >= self.held_until && self.phase == LeasePhase::Held {
            self.phase = LeasePhase::AtRisk;
            return Step::AtRisk {
                deadline: self.held_until,
            };
        }
        if now >= self.give_up_at() {
            self.phase = LeasePhase::Ended;
            return Step::Lost(LeaseLost::NeverConfirmed);
        }
        if let KeepAliveState::InFlight { sent_at } = self.keepalive
            && now >= later(sent_at, self.response_timeout())
        {
            self.failures = self.failures.saturating_add(1);
            let delay = match self.phase {
                LeasePhase::AtRisk => self.retry_delay(jitter),
                LeasePhase::Held | LeasePhase::Ended => Duration::ZERO,
            };
            self.keepalive = KeepAliveState::Due {
                at: later(now, delay),
            };
        }
        let next = match self.keepalive {
            KeepAliveState::Due { at } if now >= at => {
                self.keepalive = KeepAliveState::InFlight { sent_at: now };
                return Step::Send {
                    elsewhere: self.failures > 0,
                };
            }
            KeepAliveState::Due { at } => at,
            KeepAliveState::InFlight { sent_at } => later(sent_at, self.response_timeout()),
        };
        Step::Wait {
            until: self.plan_check(next, now),
        }
    }

    /// Sets and returns the time of the next check: `next`, or earlier if the deadline passes or the lease is given up
    /// before. Never earlier than `now`.
    fn plan_check(&mut self, next: Instant, now: Instant) -> Instant {
        let last = match self.phase {
            LeasePhase::AtRisk => self.give_up_at(),
            LeasePhase::Held | LeasePhase::Ended => self.held_until,
        };
        self.next_check = next.min(last).max(now);
        self.next_check
    }

    /// Handles the response to the keepalive sent at `sent_at`. Responses carry no number: if a stream has several
    /// keepalives of one lease in flight, `sent_at` is that of the oldest.
    pub(crate) fn handle_response(
        &mut self,
        ttl: i64,
        sent_at: Instant,
        now: Instant,
        jitter: f64,
    ) -> Option<ResponseEffect> {
        if self.is_ended() {
            return None;
        }
        if ttl <= 0 {
            let reason = LeaseLost::revoked_or_expired(now < self.held_until);
            return self.end(reason).map(ResponseEffect::Lost);
        }
        let ttl = seconds(ttl);
        let deadline = later(sent_at, ttl);
        let awaited = match self.keepalive {
            KeepAliveState::InFlight { sent_at: last } => sent_at >= last,
            KeepAliveState::Due { .. } => deadline > self.held_until,
        };
        if !awaited && deadline <= self.held_until {
            // The response to a later keepalive arrived first.
            return None;
        }
        if deadline <= now {
            // The response took longer than the TTL: the lease may have expired since.
            if awaited {
                self.keepalive = KeepAliveState::Due { at: now };
            }
            return None;
        }
        self.ttl = ttl;
        self.held_until = self.held_until.max(deadline);
        self.phase = LeasePhase::Held;
        self.earliest_give_up = None;
        if awaited {
            self.failures = 0;
            let interval = ttl.div_f64(3.0).mul_f64(1.0 + 0.1 * unit(jitter));
            self.keepalive = KeepAliveState::Due {
                at: later(sent_at, interval),
            };
        }
        Some(ResponseEffect::Renewed {
            deadline: self.held_until,
        })
    }

    /// Handles the failure of the stream that carried the keepalive sent at `sent_at`. The first failure retries at
    /// once. A keepalive sent later is on another stream and stays in flight.
    pub(crate) fn handle_failure(&mut self, sent_at: Instant, now: Instant, jitter: f64) {
        if self.in_flight_since().is_some_and(|since| since <= sent_at) {
            self.failures = self.failures.saturating_add(1);
            let delay = if self.failures == 1 && self.phase != LeasePhase::AtRisk {
                Duration::ZERO
            } else {
                self.retry_delay(jitter)
            };
            self.keepalive = KeepAliveState::Due {
                at: later(now, delay),
            };
        }
    }

    /// Restarts the response timeout of a keepalive that had to wait for a ready member and is sent at `now`. Returns
    /// the time of the next check.
    pub(crate) fn handle_delayed_send(&mut self, now: Instant) -> Instant {
        self.detect_suspension(now);
        self.keepalive = KeepAliveState::InFlight { sent_at: now };
        self.plan_check(later(now, self.response_timeout()), now)
    }

    /// Ends the lease for this reason. Returns the reason, or `None` if the lease had ended before.
    pub(crate) fn end(&mut self, reason: LeaseLost) -> Option<LeaseLost> {
        let before = std::mem::replace(&mut self.phase, LeasePhase::Ended);
        (before != LeasePhase::Ended).then_some(reason)
    }

    /// Returns when the keepalive in flight was sent.
    pub(crate) fn in_flight_since(&self) -> Option<Instant> {
        match self.keepalive {
            KeepAliveState::InFlight { sent_at } => Some(sent_at),
            KeepAliveState::Due { .. } => None,
        }
    }

    /// Returns the latest time of the next call of [`next_step`](Self::next_step).
    pub(crate) fn next_check(&self) -> Instant {
        self.next_check
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        (self.ttl / 6).clamp(MIN_RESPONSE_TIMEOUT, MAX_RESPONSE_TIMEOUT)
    }

    /// A process that was suspended past the deadline, or past the time to give up, sends one keepalive and waits for
    /// its response before it gives up.
    fn detect_suspension(&mut self, now: Instant) {
        if now > later(self.next_check, self.response_timeout()) {
            self.next_check = now;
            self.earliest_give_up = Some(later(now, self.response_timeout()));
            self.keepalive = KeepAliveState::Due { at: now };
        }
    }

    fn give_up_at(&self) -> Instant {
        let after = self.give_up_after.unwrap_or(self.ttl * 2);
        let at = later(self.held_until, after);
        self.earliest_give_up
            .map_or(at, |earliest| at.max(earliest))
    }

    fn retry_delay(&self, jitter: f64) -> Duration {
        let max = match self.phase {
            LeasePhase::AtRisk => MAX_RETRY_DELAY.min(self.ttl / 3),
            LeasePhase::Held | LeasePhase::Ended => self.response_timeout(),
        };
        let backoff = RETRY_BACKOFF.max(max.max(MIN_RESPONSE_TIMEOUT));
        // Half of the random number selects from the lower half of the jitter: delays only become shorter.
        backoff.delay(self.failures.saturating_sub(1), unit(jitter) / 2.0)
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0).min(MAX_TTL))
}

/// Returns `jitter` limited to the range from 0 to 1.
fn unit(jitter: f64) -> f64 {
    if jitter.is_finite() {
        jitter.clamp(0.0, 1.0)
    } else {
        0.0
    }
}
