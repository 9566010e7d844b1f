//! Matches keepalive responses on one stream to the keepalives that were sent.
//!
//! Responses carry a lease id and no number. A member responds in the order of the keepalives. etcd's gRPC proxy
//! responds to each lease when its own renewal of that lease succeeds: late, in any order between leases, and once for
//! every keepalive of the lease. A response is therefore matched to the oldest keepalive of its lease, and all other
//! keepalives stay in flight. Their number per lease matters: a response counted for a later keepalive than its own
//! would give the lease a deadline that is too late.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use super::lease_slab::LeaseSlot;

/// A keepalive without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InFlightKeepAlive {
    pub(crate) lease: i64,
    /// Slot of a kept lease.
    pub(crate) slot: Option<LeaseSlot>,
    pub(crate) sent_at: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct InFlightKeepAlives {
    /// Oldest first. `None`: the response arrived before that of an older keepalive.
    queue: VecDeque<Option<InFlightKeepAlive>>,
    /// Number of the first element of `queue`. Every keepalive of the stream has a number.
    first: u64,
    /// Numbers of the keepalives in flight, by lease, oldest first. Created by the first response that is out of order.
    by_lease: Option<HashMap<i64, VecDeque<u64>>>,
}

impl InFlightKeepAlives {
    pub(crate) fn push(&mut self, keepalive: InFlightKeepAlive) {
        let number = self.first + self.queue.len() as u64;
        if let Some(by_lease) = &mut self.by_lease {
            let numbers = by_lease.entry(keepalive.lease).or_default();
            numbers.push_back(number);
        }
        self.queue.push_back(Some(keepalive));
    }

    /// Removes and returns the oldest keepalive of a lease.
    pub(crate) fn take(&mut self, lease: i64) -> Option<InFlightKeepAlive> {
        if self.by_lease.is_none() {
            if self.oldest().is_some_and(|oldest| oldest.lease == lease) {
                return self.pop_oldest();
            }
            self.by_lease = Some(self.index());
        }
        let by_lease = self.by_lease.as_mut()?;
        let numbers = by_lease.get_mut(&lease)?;
        let number = numbers.pop_front()?;
        if numbers.is_empty() {
            by_lease.remove(&lease);
        }
        let position = usize::try_from(number - self.first).ok()?;
        let taken = self.queue.get_mut(position)?.take();
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
        taken
    }

    fn index(&self) -> HashMap<i64, VecDeque<u64>> {
        let mut by_lease: HashMap<i64, VecDeque<u64>> = HashMap::new();
        for (number, keepalive) in (self.first..).zip(&self.queue) {
            if let Some(keepalive) = keepalive {
                let numbers = by_lease.entry(keepalive.lease).or_default();
                numbers.push_back(number);
            }
        }
        by_lease
    }

    /// Removes and returns the oldest keepalive. Only without an index.
    fn pop_oldest(&mut self) -> Option<InFlightKeepAlive> {
        let oldest = self.queue.pop_front().flatten();
        self.first += 1;
        oldest
    }

    pub(crate) fn oldest(&self) -> Option<&InFlightKeepAlive> {
        self.queue.front().and_then(Option::as_ref)
    }

    /// Returns the keepalives, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlightKeepAlive> {
        self.queue.iter().flatten()
    }

    /// Removes and returns all keepalives, oldest first.
    pub(crate) fn into_remaining(self) -> VecDeque<InFlightKeepAlive> {
        self.queue.into_iter().flatten().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn sent(keepalives: &mut InFlightKeepAlives, lease: i64, sent_at: Instant) {
        keepalives.push(InFlightKeepAlive {
            lease,
            slot: None,
            sent_at,
        });
    }

    #[test]
    fn early_response_leaves_older_keepalives_in_flight() {
        let mut keepalives = InFlightKeepAlives::default();
        let start = Instant::now();
        for lease in [1, 2, 3] {
            sent(&mut keepalives, lease, start);
        }
        assert_eq!(keepalives.take(3).map(|taken| taken.lease), Some(3));
        assert_eq!(keepalives.iter().count(), 2);
        sent(&mut keepalives, 3, start);
        for lease in [2, 3, 1] {
            assert_eq!(keepalives.take(lease).map(|taken| taken.lease), Some(lease));
        }
        assert!(keepalives.is_empty());
        assert_eq!(keepalives.take(1), None);
    }

    #[test]
    fn response_matches_oldest_keepalive_of_its_lease() {
        let mut keepalives = InFlightKeepAlives::default();
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        for (lease, secs) in [(1, 0), (2, 1), (2, 2), (1, 3)] {
            sent(&mut keepalives, lease, at(secs));
        }
        let mut take = |lease| keepalives.take(lease).map(|taken| taken.sent_at);
        assert_eq!(take(2), Some(at(1)));
        assert_eq!(take(2), Some(at(2)));
        assert_eq!(take(2), None, "an unexpected response");
        assert_eq!(take(1), Some(at(0)));
        assert_eq!(take(1), Some(at(3)));
    }

    proptest! {
        #[test]
        fn matches_equal_those_of_one_queue_per_lease(
            steps in prop::collection::vec((prop::bool::ANY, 0..4_i64), 0..200),
        ) {
            let mut keepalives = InFlightKeepAlives::default();
            let mut expected: HashMap<i64, VecDeque<Instant>> = HashMap::new();
            let start = Instant::now();
            for (step, (is_send, lease)) in (0..).zip(steps) {
                if is_send {
                    let sent_at = start + Duration::from_millis(step);
                    sent(&mut keepalives, lease, sent_at);
                    expected.entry(lease).or_default().push_back(sent_at);
                } else {
                    let taken = keepalives.take(lease);
                    prop_assert_eq!(taken.map_or(lease, |taken| taken.lease), lease);
                    let sent_at = expected.entry(lease).or_default().pop_front();
                    prop_assert_eq!(taken.map(|taken| taken.sent_at), sent_at);
                }
                let mut in_flight: Vec<_> = expected.values().flatten().copied().collect();
                in_flight.sort();
                let oldest = keepalives.oldest().map(|oldest| oldest.sent_at);
                prop_assert_eq!(oldest, in_flight.first().copied());
                let all: Vec<_> = keepalives.iter().map(|keepalive| keepalive.sent_at).collect();
                prop_assert_eq!(all, in_flight);
            }
        }
    }
}
