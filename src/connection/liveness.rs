//! Times after which a member that does not respond is suspected: configured minimums, longer on slow links.

use std::time::Duration;

use super::round_trips::RoundTrips;

/// Longest time derived from round trips. A longer configured minimum applies as it is.
const MAX_DERIVED: Duration = Duration::from_secs(5);

/// Times after which the client suspects a member that does not respond.
///
/// Each is a minimum. On a slow link, the client uses longer times, derived from the round trips that it measures on
/// each connection (mean *m* and mean deviation *d* of the probes, as TCP does it):
///
/// | time | minimum | derived | purpose |
/// |---|---|---|---|
/// | [`suspect_after`](Self::suspect_after) | 250 ms | 1.5 *m* + 4 *d* | probe the member of a late response |
/// | [`hedge_after`](Self::hedge_after) | 400 ms | 2 *m* + 4 *d* | send a second copy of a request that may be repeated |
/// | [`unresponsive_after`](Self::unresponsive_after) | 400 ms | 2 *m* + 4 *d* | treat a probe without a response as a sign of failure |
///
/// Derived times are at most 5 s.
///
/// # Idle streams
/// A watch or a keepalive stream without traffic does not notice that its member is frozen or cut off from the cluster:
/// a cut-off member responds to every probe for longer than a second. So while a client has open streams, it sends a
/// `Status` request to the members that carry them, and to up to four others for comparison, every
/// [`check_streams_every`](Self::check_streams_every) (680 ms). A stream leaves
/// - a frozen member, or one behind a frozen link, within 1.2 s;
/// - a member that is cut off from its peers within 1.5 s after the first write that it misses.
///
/// The member must have another one to be compared with; a client with a single connection needs about 3 s.
///
/// Cost: with open streams about 88 `Status` requests per minute and member, 265 for a client of a three-member cluster
/// (a few kilobytes per second). Without open streams, none while calls are fast. With more than nine members, the
/// interval grows, so that these checks use at most 13 of the client's 20 probes per second.
///
/// ```
/// use std::time::Duration;
///
/// use actix_etcd::{Client, client::Liveness};
///
/// let satellite_link = Liveness::default().unresponsive_after(Duration::from_secs(2));
/// let builder = Client::builder(["https://etcd.example:2379"]).liveness(satellite_link);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Liveness {
    suspicion: Duration,
    hedge: Duration,
    silence: Duration,
    stream_checks: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            suspicion: Duration::from_millis(250),
            hedge: Duration::from_millis(400),
            silence: Duration::from_millis(400),
            stream_checks: Duration::from_millis(680),
        }
    }
}

impl Liveness {
    /// Shortest time without a response after which the member of a request is probed. Default: 250 ms.
    #[must_use]
    pub fn suspect_after(mut self, time: Duration) -> Self {
        self.suspicion = time;
        self
    }

    /// Shortest time without a response after which a second copy of a request is sent to another member, if the
    /// request may be repeated. Default: 400 ms.
    #[must_use]
    pub fn hedge_after(mut self, time: Duration) -> Self {
        self.hedge = time;
        self
    }

    /// Shortest time without a response to a probe after which the member counts as unresponsive, if nothing else
    /// arrives from it and other members respond. Default: 400 ms.
    #[must_use]
    pub fn unresponsive_after(mut self, time: Duration) -> Self {
        self.silence = time;
        self
    }

    /// Interval at which members that carry idle streams are probed; see [above](Self#idle-streams). An idle stream
    /// leaves a frozen member after one interval and `unresponsive_after`, and a cut-off member after two intervals.
    /// Default: 680 ms.
    #[must_use]
    pub fn check_streams_every(mut self, interval: Duration) -> Self {
        self.stream_checks = interval;
        self
    }

    pub(crate) fn stream_checks(&self) -> Duration {
        self.stream_checks
    }

    /// Returns each time with the name of its option.
    pub(crate) fn options(&self) -> [(&'static str, Duration); 4] {
        [
            ("suspect_after", self.suspicion),
            ("hedge_after", self.hedge),
            ("unresponsive_after", self.silence),
            ("check_streams_every", self.stream_checks),
        ]
    }
}

/// The times of [`Liveness`] for one connection.
#[derive(Debug)]
pub(crate) struct LinkTiming {
    minimum: Liveness,
    round_trips: RoundTrips,
}

impl LinkTiming {
    pub(super) fn new(minimum: Liveness, first_round_trip: Duration) -> Self {
        Self {
            minimum,
            round_trips: RoundTrips::new(first_round_trip),
        }
    }

    pub(super) fn round_trips(&self) -> &RoundTrips {
        &self.round_trips
    }

    /// Returns the time without a response after which the member is suspected.
    pub(crate) fn suspect_after(&self) -> Duration {
        let mean = self.round_trips.mean();
        self.minimum.suspicion.max(self.derived(mean + mean / 2))
    }

    /// Returns the time without a response after which a copy of the request is sent to another member.
    pub(crate) fn hedge_after(&self) -> Duration {
        let mean = self.round_trips.mean();
        self.minimum.hedge.max(self.derived(mean * 2))
    }

    /// Returns the time of silence that the round trips do not explain.
    pub(super) fn unresponsive_after(&self) -> Duration {
        let mean = self.round_trips.mean();
        self.minimum.silence.max(self.derived(mean * 2))
    }

    fn derived(&self, round_trips: Duration) -> Duration {
        (round_trips + self.round_trips.deviation() * 4).min(MAX_DERIVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn link(first_round_trip: Duration) -> LinkTiming {
        LinkTiming::new(Liveness::default(), first_round_trip)
    }

    #[test]
    fn fast_link_uses_the_configured_times() {
        let link = link(ms(2));
        assert_eq!(link.suspect_after(), ms(250));
        assert_eq!(link.hedge_after(), ms(400));
        assert_eq!(link.unresponsive_after(), ms(400));
    }

    #[test]
    fn slow_link_raises_every_time() {
        let link = link(ms(700));
        for _ in 0..30 {
            link.round_trips().add_sample(ms(700));
        }
        assert!(link.suspect_after() > ms(1050) && link.suspect_after() < ms(1100));
        assert!(link.unresponsive_after() > ms(1400) && link.unresponsive_after() < ms(1450));
        assert_eq!(link.hedge_after(), link.unresponsive_after());
    }

    #[test]
    fn fast_probe_after_slow_first_contact_restores_configured_times() {
        let link = link(ms(1300));
        assert!(link.suspect_after() > ms(4000));
        link.round_trips().add_sample(ms(10));
        assert_eq!(link.suspect_after(), ms(250));
        assert_eq!(link.hedge_after(), ms(400));
        assert_eq!(link.unresponsive_after(), ms(400));
    }

    #[test]
    fn varying_link_keeps_room_for_its_slow_round_trips() {
        let link = link(ms(700));
        for _ in 0..10 {
            link.round_trips().add_sample(ms(300));
            assert!(link.unresponsive_after() > ms(900));
            link.round_trips().add_sample(ms(700));
        }
    }

    #[test]
    fn derived_times_are_bounded() {
        assert_eq!(link(ms(60_000)).unresponsive_after(), MAX_DERIVED);
        let configured = Liveness::default().unresponsive_after(ms(9000));
        let link = LinkTiming::new(configured, ms(1));
        assert_eq!(link.unresponsive_after(), ms(9000));
    }
}
