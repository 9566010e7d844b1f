//! When a member that has not responded to a probe counts as unresponsive.
//!
//! A slow response alone proves nothing: the link may be slow, the member may be busy with a large response on the same
//! connection, the whole machine may be slow, or this process may have been suspended.

use std::time::Duration;

use tokio::time::Instant;

/// Shortest time limit for a member that has sent other data since the probe, or while no other member responds either.
const SLOW_MEMBER: Duration = Duration::from_secs(2);
/// Time limit while data keeps arriving: the response may be queued behind a large one.
const BUSY_CONNECTION: Duration = Duration::from_secs(10);
/// A timer that fires this late means that this process was delayed, not the member.
const LATE_TIMER: Duration = Duration::from_millis(100);

/// Decision about a probe whose time limit has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateProbe {
    /// Wait until the new limit.
    Wait,
    /// Wait until the new limit, and suspect the member: nothing arrives from it.
    Suspect {
        /// Whether another member has sent data since the probe was sent.
        others_responded: bool,
    },
    /// Nothing arrives from the member: requests in flight will not be served either.
    Silent,
    /// Data arrives from the member, but no response to the probe.
    Ignored,
}

/// Decides how long to wait for one probe.
#[derive(Debug)]
pub(super) struct ProbeTimeout {
    sent_at: Instant,
    /// Time of silence that the round trips of the link do not explain.
    silence: Duration,
    limit: Instant,
}

impl ProbeTimeout {
    pub(super) fn new(sent_at: Instant, silence: Duration) -> Self {
        Self {
            sent_at,
            silence,
            limit: sent_at + silence,
        }
    }

    pub(super) fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Returns when to call [`ProbeTimeout::evaluate`] next.
    pub(super) fn limit(&self) -> Instant {
        self.limit
    }

    /// Returns what to do after the limit has passed.
    ///
    /// `last_received` is the time of the last data on the connection; `others_responded` returns whether another
    /// member has sent data since the probe was sent.
    pub(super) fn evaluate(
        &mut self,
        now: Instant,
        last_received: Instant,
        others_responded: impl FnOnce() -> bool,
    ) -> LateProbe {
        if now > self.limit + LATE_TIMER {
            self.limit = now + self.silence / 2;
            return LateProbe::Wait;
        }
        let slow_until = self.sent_at + SLOW_MEMBER.max(self.silence * 2);
        let received_since = last_received > self.sent_at;
        if last_received + self.silence > now {
            if now >= self.sent_at + BUSY_CONNECTION {
                return LateProbe::Ignored;
            }
            self.limit = now + self.silence;
            return LateProbe::Wait;
        }
        if now >= slow_until {
            return LateProbe::Silent;
        }
        let others_responded = others_responded();
        if others_responded && !received_since {
            return LateProbe::Silent;
        }
        self.limit = (now + self.silence).min(slow_until);
        LateProbe::Suspect { others_responded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_millis(400);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Returns the final decision and its time in milliseconds after the probe.
    fn outcome(
        silence: Duration,
        last_received: impl Fn(Instant, Instant) -> Instant,
        others_responded: bool,
    ) -> (LateProbe, u64) {
        let sent_at = Instant::now();
        let mut timeout = ProbeTimeout::new(sent_at, silence);
        loop {
            let now = timeout.limit();
            match timeout.evaluate(now, last_received(sent_at, now), || others_responded) {
                LateProbe::Wait => {}
                LateProbe::Suspect {
                    others_responded: others,
                } => assert_eq!(others, others_responded),
                decision @ (LateProbe::Silent | LateProbe::Ignored) => {
                    return (
                        decision,
                        u64::try_from((now - sent_at).as_millis()).unwrap(),
                    );
                }
            }
        }
    }

    #[test]
    fn silent_member_is_unresponsive_while_others_respond() {
        assert_eq!(
            outcome(SILENCE, |sent, _| sent, true),
            (LateProbe::Silent, 400)
        );
    }

    #[test]
    fn slow_link_gets_time_for_round_trips() {
        assert_eq!(
            outcome(ms(1500), |sent, _| sent, true),
            (LateProbe::Silent, 1500)
        );
    }

    #[test]
    fn silence_of_all_members_gets_more_time() {
        assert_eq!(
            outcome(SILENCE, |sent, _| sent, false),
            (LateProbe::Silent, 2000)
        );
    }

    #[test]
    fn data_after_the_probe_gives_more_time() {
        let received = |sent: Instant, _| sent + ms(100);
        assert_eq!(outcome(SILENCE, received, true), (LateProbe::Silent, 2000));
    }

    #[test]
    fn busy_connection_is_never_silent() {
        assert_eq!(
            outcome(SILENCE, |_, now| now, true),
            (LateProbe::Ignored, 10_000)
        );
    }

    #[test]
    fn late_timer_extends_the_limit() {
        let sent_at = Instant::now();
        let mut timeout = ProbeTimeout::new(sent_at, SILENCE);
        let resumed = sent_at + ms(60_000);
        assert_eq!(timeout.evaluate(resumed, sent_at, || true), LateProbe::Wait);
        assert_eq!(timeout.limit(), resumed + ms(200));
        let decision = timeout.evaluate(timeout.limit(), sent_at, || true);
        assert_eq!(decision, LateProbe::Silent);
    }
}
