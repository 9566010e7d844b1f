//! The deadline of one lease: when to ask, when it is at risk, when it is lost.
//!
//! The server counts a lease's time from when it handles a keepalive, which is after it was *sent*. So
//! counted from the sending, the deadline is never later than the server's: before it the lease is
//! there unless someone revoked it, after it nobody knows until the server says so. A leader change
//! gives leases more time, hence a passed deadline is a reason to tell and to ask on, not to give up.
//!
//! A keepalive without an answer is written off long before TCP or pings notice anything, and the next
//! one goes by another member. One is in flight at a time: asking a cluster that is busy with an
//! election again and again is what makes it lose leases.

use std::time::{Duration, Instant};

/// No answer is written off sooner: a round trip through a busy cluster takes its time.
const LEAST_PATIENCE: Duration = Duration::from_millis(300);
/// However long the lease, a member that does not answer is not waited for longer.
const MOST_PATIENCE: Duration = Duration::from_secs(10);
/// The first pause after a second failure in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause of a lease at risk: the cluster may be back any moment.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest TTL etcd grants, in seconds.
const MAX_TTL: u64 = 9_000_000_000;

/// Why a lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseLost {
    /// The server says it is gone, after its deadline.
    Expired,
    /// The server says it is gone, before its deadline: someone revoked it; or a leader that had stood still for longer
    /// than the lease lives went on and took it for expired, which etcd does not always prevent.
    Revoked,
    /// No member said anything about it until the time to give up had come.
    NeverConfirmed,
    /// This user may not keep it alive.
    PermissionDenied,
    /// The client was shut down.
    Shutdown,
}

impl LeaseLost {
    /// Why the server does not have it: before its deadline only someone can have ended it.
    pub(crate) fn gone(before_its_deadline: bool) -> Self {
        if before_its_deadline {
            Self::Revoked
        } else {
            Self::Expired
        }
    }
}

/// What to do now. After anything but [`Step::Wait`] and [`Step::Ended`], ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a keepalive; `elsewhere`: by another member than the last one.
    Send { elsewhere: bool },
    /// Tell that the deadline has passed without an answer.
    AtRisk { deadline: Instant },
    /// Tell that it is lost. Nothing follows.
    Lost(LeaseLost),
    /// Nothing to do before this moment.
    Wait { until: Instant },
    /// The lease was told to be lost before.
    Ended,
}

/// What an answer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Renewed { deadline: Instant },
    Lost(LeaseLost),
}

#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(PartialEq))]
enum Keepalive {
    Due { at: Instant },
    InFlight { sent_at: Instant },
}

/// The clock of one lease. Jitter is a random number in `0.0..1.0`.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct Deadline {
    ttl: Duration,
    /// The deadline itself.
    held_until: Instant,
    /// `None`: twice the TTL.
    give_up_after: Option<Duration>,
    keepalive: Keepalive,
    /// Keepalives without an answer, in a row.
    unanswered: u32,
    at_risk: bool,
    /// When the last [`Step::Wait`] ends: who comes much later has slept.
    expected: Instant,
    /// Not given up before this, although the time has come.
    spared_until: Option<Instant>,
    ended: bool,
}

impl Deadline {
    /// A lease was granted, by a request sent at `asked_at`. The first keepalive comes early by up to
    /// half of its time, so that leases granted together are not kept alive together.
    pub(crate) fn granted(ttl: i64, asked_at: Instant, now: Instant, jitter: f64) -> Self {
        let ttl = seconds(ttl);
        let first = ttl.div_f64(3.0).mul_f64(0.5 + 0.5 * unit(jitter));
        Self {
            ttl,
            held_until: later(asked_at, ttl),
            give_up_after: None,
            keepalive: Keepalive::Due {
                at: later(asked_at, first),
            },
            unanswered: 0,
            at_risk: false,
            expected: now,
            spared_until: None,
            ended: false,
        }
    }

    /// How long past the deadline to ask on. Default: twice the TTL.
    pub(crate) fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = Some(after);
        self
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Until then the server has the lease, unless someone revokes it.
    pub(crate) fn deadline(&self) -> Instant {
        self.held_until
    }

    #[cfg(test)]
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.held_until.saturating_duration_since(now)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// What to do at `now`.
    pub(crate) fn tick(&mut self, now: Instant, jitter: f64) -> Step {
        if self.ended {
            return Step::Ended;
        }
        self.notice_sleep(now);
        if now >= self.held_until && !self.at_risk {
            self.at_risk = true;
            return Step::AtRisk {
                deadline: self.held_until,
            };
        }
        if now >= self.gives_up_at() {
            self.ended = true;
            return Step::Lost(LeaseLost::NeverConfirmed);
        }
        if let Keepalive::InFlight { sent_at } = self.keepalive
            && now >= later(sent_at, self.patience())
        {
            self.unanswered = self.unanswered.saturating_add(1);
            let pause = if self.at_risk {
                self.pause(jitter)
            } else {
                Duration::ZERO
            };
            self.keepalive = Keepalive::Due {
                at: later(now, pause),
            };
        }
        let next = match self.keepalive {
            Keepalive::Due { at } if now >= at => {
                self.keepalive = Keepalive::InFlight { sent_at: now };
                return Step::Send {
                    elsewhere: self.unanswered > 0,
                };
            }
            Keepalive::Due { at } => at,
            Keepalive::InFlight { sent_at } => later(sent_at, self.patience()),
        };
        Step::Wait {
            until: self.expect(next, now),
        }
    }

    /// When it has to be looked at, if there is something to do about its keepalive then. What is overdue is due now.
    fn expect(&mut self, next: Instant, now: Instant) -> Instant {
        let last = if self.at_risk {
            self.gives_up_at()
        } else {
            self.held_until
        };
        self.expected = next.min(last).max(now);
        self.expected
    }

    /// A keepalive sent at `sent_at` was answered. Answers carry no number: where one stream owes
    /// several, the oldest has to be taken.
    pub(crate) fn acked(
        &mut self,
        ttl: i64,
        sent_at: Instant,
        now: Instant,
        jitter: f64,
    ) -> Option<Told> {
        if self.ended {
            return None;
        }
        if ttl <= 0 {
            let reason = LeaseLost::gone(now < self.held_until);
            return self.end(reason).map(Told::Lost);
        }
        let ttl = seconds(ttl);
        let deadline = later(sent_at, ttl);
        let awaited = match self.keepalive {
            Keepalive::InFlight { sent_at: last } => sent_at >= last,
            Keepalive::Due { .. } => deadline > self.held_until,
        };
        if !awaited && deadline <= self.held_until {
            // Overtaken by the answer to a later one.
            return None;
        }
        if deadline <= now {
            // It took longer than the lease lives: says nothing about now.
            if awaited {
                self.keepalive = Keepalive::Due { at: now };
            }
            return None;
        }
        self.renew(ttl, deadline);
        if awaited {
            self.schedule(sent_at, jitter);
        }
        Some(Told::Renewed {
            deadline: self.held_until,
        })
    }

    /// Takes the keepalive that is due where all is well: there is nothing to tell, nobody slept, and its time to wait
    /// for an answer ends before the deadline. Otherwise nothing happens, and [`tick`](Self::tick) tells what to do.
    pub(crate) fn send_routinely(&mut self, now: Instant) -> bool {
        let overdue_at = later(now, self.patience());
        let well = self.is_calm(now)
            && overdue_at <= self.held_until
            && matches!(self.keepalive, Keepalive::Due { at } if now >= at);
        if well {
            self.keepalive = Keepalive::InFlight { sent_at: now };
            self.expected = overdue_at;
        }
        well
    }

    /// Takes the answer to the keepalive in flight where all is well, and tells when the next one is due. Otherwise
    /// nothing happens, and the answer is one for [`acked`](Self::acked).
    pub(crate) fn renew_routinely(
        &mut self,
        ttl: i64,
        sent_at: Instant,
        now: Instant,
        jitter: f64,
    ) -> Option<Instant> {
        let ttl = seconds(ttl);
        let in_time = later(sent_at, ttl / 3) > now;
        let well = self.is_calm(now) && in_time && self.in_flight_since() == Some(sent_at);
        if !well {
            return None;
        }
        self.renew(ttl, later(sent_at, ttl));
        self.expected = self.schedule(sent_at, jitter).min(self.held_until);
        Some(self.expected)
    }

    /// The keepalive that had to wait for a member goes out only now: its answer is waited for from now on, whatever was
    /// thought of it meanwhile. Tells when to look at it again.
    pub(crate) fn sent(&mut self, now: Instant) -> Instant {
        self.notice_sleep(now);
        self.keepalive = Keepalive::InFlight { sent_at: now };
        self.expect(later(now, self.patience()), now)
    }

    /// When the keepalive in flight was sent.
    pub(crate) fn in_flight_since(&self) -> Option<Instant> {
        match self.keepalive {
            Keepalive::InFlight { sent_at } => Some(sent_at),
            Keepalive::Due { .. } => None,
        }
    }

    /// When it has to be looked at again, whatever is heard until then.
    pub(crate) fn expected(&self) -> Instant {
        self.expected
    }

    fn is_calm(&self, now: Instant) -> bool {
        let slept = now > later(self.expected, self.patience());
        !self.ended && !self.at_risk && self.unanswered == 0 && !slept && now < self.held_until
    }

    fn renew(&mut self, ttl: Duration, deadline: Instant) {
        self.ttl = ttl;
        self.held_until = self.held_until.max(deadline);
        self.at_risk = false;
        self.spared_until = None;
    }

    /// The keepalive sent then was answered: the next one comes a third of the TTL after it.
    fn schedule(&mut self, sent_at: Instant, jitter: f64) -> Instant {
        self.unanswered = 0;
        let interval = self.ttl.div_f64(3.0).mul_f64(1.0 + 0.1 * unit(jitter));
        let at = later(sent_at, interval);
        self.keepalive = Keepalive::Due { at };
        at
    }

    /// The keepalive sent at `sent_at` will not be answered: its stream broke. The first time it goes out again at once.
    /// One that was sent later is on another stream, and still waited for.
    pub(crate) fn unsent(&mut self, sent_at: Instant, now: Instant, jitter: f64) {
        if self.in_flight_since().is_some_and(|since| since <= sent_at) {
            self.unanswered = self.unanswered.saturating_add(1);
            let first = self.unanswered == 1 && !self.at_risk;
            let pause = if first {
                Duration::ZERO
            } else {
                self.pause(jitter)
            };
            self.keepalive = Keepalive::Due {
                at: later(now, pause),
            };
        }
    }

    /// Ends it for a reason known elsewhere; `None` if it had ended before.
    pub(crate) fn end(&mut self, reason: LeaseLost) -> Option<LeaseLost> {
        (!std::mem::replace(&mut self.ended, true)).then_some(reason)
    }

    /// How long an answer is waited for.
    pub(crate) fn patience(&self) -> Duration {
        (self.ttl / 6).clamp(LEAST_PATIENCE, MOST_PATIENCE)
    }

    /// A process that was stopped past the deadline, or past the time to give up, has not asked yet. It
    /// asks at once and waits for one answer, whatever was in flight before.
    fn notice_sleep(&mut self, now: Instant) {
        if now > later(self.expected, self.patience()) {
            self.expected = now;
            self.spared_until = Some(later(now, self.patience()));
            self.keepalive = Keepalive::Due { at: now };
        }
    }

    fn gives_up_at(&self) -> Instant {
        let after = self.give_up_after.unwrap_or(self.ttl * 2);
        let at = later(self.held_until, after);
        self.spared_until.map_or(at, |spared| at.max(spared))
    }

    fn pause(&self, jitter: f64) -> Duration {
        let longest = if self.at_risk {
            LONGEST_PAUSE.min(self.ttl / 3)
        } else {
            self.patience()
        };
        let doubled = FIRST_PAUSE * 2_u32.pow(self.unanswered.saturating_sub(1).min(10));
        doubled
            .min(longest.max(LEAST_PATIENCE))
            .mul_f64(0.5 + 0.5 * unit(jitter))
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0).min(MAX_TTL))
}

/// A moment too far to be told is as good as one 30 years away.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by)
        .unwrap_or_else(|| from + Duration::from_secs(946_080_000))
}

fn unit(jitter: f64) -> f64 {
    if jitter.is_finite() {
        jitter.clamp(0.0, 1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod routine;
#[cfg(test)]
mod tests;
