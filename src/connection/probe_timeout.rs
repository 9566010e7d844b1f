//! When a member that has not responded to a probe counts as unresponsive.
//!
//! A slow response alone proves nothing: the member may be busy with a large response on the same connection, the whole
//! machine may be slow, or this process may have been suspended.

use std::time::Duration;

use tokio::time::Instant;

/// Time without a response after which [`ProbeTimeout::is_unresponsive`] is evaluated first.
pub(super) const SILENCE: Duration = Duration::from_millis(400);
/// Time limit for a member that has sent other data since the probe, or while no other member responds either.
const SLOW_MEMBER: Duration = Duration::from_secs(2);
/// Time limit while data keeps arriving: the response may be queued behind a large one.
const BUSY_CONNECTION: Duration = Duration::from_secs(10);
/// A timer that fires this late means that this process was delayed, not the member.
const LATE_TIMER: Duration = Duration::from_millis(100);

/// Decides how long to wait for one probe.
#[derive(Debug)]
pub(super) struct ProbeTimeout {
    sent_at: Instant,
    limit: Instant,
}

impl ProbeTimeout {
    pub(super) fn new(sent_at: Instant) -> Self {
        Self {
            sent_at,
            limit: sent_at + SILENCE,
        }
    }

    pub(super) fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Returns when to call [`ProbeTimeout::is_unresponsive`] next.
    pub(super) fn limit(&self) -> Instant {
        self.limit
    }

    /// Returns whether to give up after the limit has passed; otherwise sets a new limit.
    ///
    /// `last_received` is the time of the last data on the connection; `others_responded` returns whether another
    /// member has sent data since the probe was sent.
    pub(super) fn is_unresponsive(
        &mut self,
        now: Instant,
        last_received: Instant,
        others_responded: impl FnOnce() -> bool,
    ) -> bool {
        let slow_until = self.sent_at + SLOW_MEMBER;
        if now > self.limit + LATE_TIMER {
            self.limit = now + SILENCE / 2;
        } else if now < slow_until && (last_received > self.sent_at || !others_responded()) {
            self.limit = (now + SILENCE).min(slow_until);
        } else if now < self.sent_at + BUSY_CONNECTION && last_received + SILENCE > now {
            self.limit = now + SILENCE;
        } else {
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Returns when a member counts as unresponsive, in milliseconds after the probe.
    fn unresponsive_after(
        last_received: impl Fn(Instant) -> Instant,
        others_responded: bool,
    ) -> u64 {
        let sent_at = Instant::now();
        let mut timeout = ProbeTimeout::new(sent_at);
        loop {
            let now = timeout.limit();
            if timeout.is_unresponsive(now, last_received(now), || others_responded) {
                return u64::try_from((now - sent_at).as_millis()).unwrap();
            }
        }
    }

    #[test]
    fn silent_member_is_unresponsive_while_others_respond() {
        let before = Instant::now();
        assert_eq!(unresponsive_after(|_| before, true), 400);
    }

    #[test]
    fn silence_of_all_members_gets_more_time() {
        let before = Instant::now();
        assert_eq!(unresponsive_after(|_| before, false), 2000);
    }

    #[test]
    fn busy_connection_gets_ten_seconds() {
        assert_eq!(unresponsive_after(|now| now, true), 10_000);
    }

    #[test]
    fn late_timer_extends_the_limit() {
        let sent_at = Instant::now();
        let mut timeout = ProbeTimeout::new(sent_at);
        let resumed = sent_at + ms(60_000);
        assert!(!timeout.is_unresponsive(resumed, sent_at, || true));
        assert_eq!(timeout.limit(), resumed + ms(200));
        assert!(timeout.is_unresponsive(timeout.limit(), sent_at, || true));
    }
}
