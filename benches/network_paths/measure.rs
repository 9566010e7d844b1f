//! Gaps and failures in one window of time.

use actix_etcd::Outcome;

use crate::load::{CallRecord, Records, TTL};

/// Time of one fault, in microseconds since 1970.
pub struct Window {
    pub from: u128,
    pub until: u128,
}

impl Window {
    fn contains(&self, at: u128) -> bool {
        (self.from..self.until).contains(&at)
    }

    /// Returns the longest time without a success, in seconds. `successes` are in order.
    fn longest_gap(&self, successes: impl IntoIterator<Item = u128>) -> f64 {
        let inside = successes.into_iter().filter(|at| self.contains(*at));
        let (mut last, mut longest) = (self.from, 0);
        for at in inside.chain([self.until]) {
            longest = longest.max(at - last);
            last = at;
        }
        seconds(longest)
    }
}

/// Measurements of one fault on one path; the worst of its windows.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Longest gap of the baseline, in seconds.
    pub baseline: f64,
    /// Excess over the baseline, in seconds.
    pub put: f64,
    pub get: f64,
    pub watch: f64,
    /// Delay of a renewal beyond its interval and the baseline, in seconds.
    pub lease: f64,
    /// Number of puts that ended with an unknown outcome.
    pub unknown_puts: usize,
    /// Number of other failed puts.
    pub failed_puts: usize,
    pub failed_gets: usize,
    pub lost_leases: usize,
}

impl Cell {
    pub fn new(window: &Window, records: &Records, baseline: &[u128]) -> Self {
        let baseline = window.longest_gap(baseline.iter().copied());
        let excess = |successes: Vec<u128>| (window.longest_gap(successes) - baseline).max(0.0);
        let failed = |calls: &[CallRecord], matches: fn(Outcome) -> bool| {
            let inside = calls.iter().filter(|call| window.contains(call.ended));
            let failures = inside.filter_map(|call| call.failure.as_ref());
            failures.filter(|(_, outcome)| matches(*outcome)).count()
        };
        let events = records.events.iter().map(|(at, _)| *at).collect();
        let lost = records.lost_leases.iter();
        Self {
            baseline,
            put: excess(successes(&records.puts)),
            get: excess(successes(&records.gets)),
            watch: excess(events),
            lease: (excess(records.renewals.clone()) - TTL.as_secs_f64() / 3.0).max(0.0),
            unknown_puts: failed(&records.puts, |outcome| outcome == Outcome::Unknown),
            failed_puts: failed(&records.puts, |outcome| outcome != Outcome::Unknown),
            failed_gets: failed(&records.gets, |_| true),
            lost_leases: lost.filter(|(at, _)| window.contains(*at)).count(),
        }
    }

    /// Adds another window of the same fault.
    pub fn merge(&mut self, other: &Self) {
        for (worst, value) in [
            (&mut self.baseline, other.baseline),
            (&mut self.put, other.put),
            (&mut self.get, other.get),
            (&mut self.watch, other.watch),
            (&mut self.lease, other.lease),
        ] {
            *worst = worst.max(value);
        }
        self.unknown_puts += other.unknown_puts;
        self.failed_puts += other.failed_puts;
        self.failed_gets += other.failed_gets;
        self.lost_leases += other.lost_leases;
    }
}

fn successes(calls: &[CallRecord]) -> Vec<u128> {
    let succeeded = calls.iter().filter(|call| call.failure.is_none());
    succeeded.map(|call| call.ended).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a bench takes minutes")]
fn seconds(micros: u128) -> f64 {
    micros as f64 / 1e6
}
