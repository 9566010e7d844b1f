//! When a late response makes a member suspect: configured minimum times, raised on slow links.

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
    suspect_after: Duration,
    hedge_after: Duration,
    unresponsive_after: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            suspect_after: Duration::from_millis(250),
            hedge_after: Duration::from_millis(400),
            unresponsive_after: Duration::from_millis(400),
        }
    }
}

impl Liveness {
    /// Shortest time without a response after which the member of a request is probed. Default: 250 ms.
    #[must_use]
    pub fn suspect_after(mut self, time: Duration) -> Self {
        self.suspect_after = time;
        self
    }

    /// Shortest time without a response after which a second copy of a request is sent to another member, if the
    /// request may be repeated. Default: 400 ms.
    #[must_use]
    pub fn hedge_after(mut self, time: Duration) -> Self {
        self.hedge_after = time;
        self
    }

    /// Shortest time without a response to a probe after which the member counts as unresponsive, if nothing else
    /// arrives from it and other members respond. Default: 400 ms.
    #[must_use]
    pub fn unresponsive_after(mut self, time: Duration) -> Self {
        self.unresponsive_after = time;
        self
    }

    /// Returns each time with the name of its option.
    pub(crate) fn options(&self) -> [(&'static str, Duration); 3] {
        [
            ("suspect_after", self.suspect_after),
            ("hedge_after", self.hedge_after),
            ("unresponsive_after", self.unresponsive_after),
        ]
    }

    /// Returns the times for a link with these round trips.
    pub(super) fn for_link(&self, round_trips: &RoundTrips) -> LinkTimes {
        let (mean, deviation) = (round_trips.mean(), round_trips.deviation());
        let derived = |mean: Duration| (mean + deviation * 4).min(MAX_DERIVED);
        let unresponsive = derived(mean * 2);
        LinkTimes {
            suspect_after: self.suspect_after.max(derived(mean + mean / 2)),
            hedge_after: self.hedge_after.max(unresponsive),
            unresponsive_after: self.unresponsive_after.max(unresponsive),
        }
    }
}

/// The times of [`Liveness`] for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkTimes {
    pub(crate) suspect_after: Duration,
    pub(crate) hedge_after: Duration,
    pub(crate) unresponsive_after: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn fast_link_uses_the_configured_times() {
        let times = Liveness::default().for_link(&RoundTrips::new(ms(2)));
        assert_eq!(times.suspect_after, ms(250));
        assert_eq!(times.hedge_after, ms(400));
        assert_eq!(times.unresponsive_after, ms(400));
    }

    #[test]
    fn slow_link_raises_every_time() {
        let round_trips = RoundTrips::new(ms(700));
        for _ in 0..30 {
            round_trips.add_sample(ms(700));
        }
        let times = Liveness::default().for_link(&round_trips);
        assert!(times.suspect_after > ms(1050) && times.suspect_after < ms(1100));
        assert!(times.unresponsive_after > ms(1400) && times.unresponsive_after < ms(1450));
        assert_eq!(times.hedge_after, times.unresponsive_after);
    }

    #[test]
    fn derived_times_are_bounded() {
        let times = Liveness::default().for_link(&RoundTrips::new(ms(60_000)));
        assert_eq!(times.unresponsive_after, MAX_DERIVED);
        let configured = Liveness::default().unresponsive_after(ms(9000));
        let times = configured.for_link(&RoundTrips::new(ms(1)));
        assert_eq!(times.unresponsive_after, ms(9000));
    }
}
