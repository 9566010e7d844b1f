//! Remembers which addresses of an endpoint failed, and orders the addresses of the next dial. Pure.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use tokio::time::Instant;

/// Time for which an address that failed is tried after the others.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// The addresses of one endpoint that failed lately.
#[derive(Debug, Default)]
pub(crate) struct AddressHistory {
    /// Time of each address's last failure.
    failed_at: HashMap<SocketAddr, Instant>,
}

impl AddressHistory {
    /// Records that an address failed or led to a member that cannot be used.
    pub(crate) fn mark_failed(&mut self, address: SocketAddr, now: Instant) {
        self.failed_at
            .retain(|_, failed_at| is_recent(*failed_at, now));
        self.failed_at.insert(address, now);
    }

    /// Records that the member behind an address responded.
    pub(crate) fn mark_responded(&mut self, address: SocketAddr) {
        self.failed_at.remove(&address);
    }

    /// Returns the addresses without duplicates, in the order in which to try them: first those without a recent
    /// failure, alternating between IPv6 and IPv4, then the others, the oldest failure first.
    pub(crate) fn order(&self, addresses: Vec<SocketAddr>, now: Instant) -> Vec<SocketAddr> {
        let mut unique = Vec::with_capacity(addresses.len());
        for address in addresses {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        let (mut failed, untried): (Vec<_>, Vec<_>) = unique
            .into_iter()
            .partition(|address| self.recent_failure(*address, now).is_some());
        failed.sort_by_key(|address| self.recent_failure(*address, now));
        let mut ordered = alternate_families(untried);
        ordered.append(&mut failed);
        ordered
    }

    fn recent_failure(&self, address: SocketAddr, now: Instant) -> Option<Instant> {
        let failed_at = self.failed_at.get(&address).copied();
        failed_at.filter(|failed_at| is_recent(*failed_at, now))
    }
}

fn is_recent(failed_at: Instant, now: Instant) -> bool {
    now < failed_at + AVOIDED_FOR
}

/// Alternates between the address families, starting with that of the first address. A family without a route then
/// delays the other one by a single attempt.
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let count = addresses.len();
    let starts_with_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == starts_with_ipv6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::with_capacity(count);
    while ordered.len() < count {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn failed_address_comes_last_for_a_while() {
        let now = Instant::now();
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]);
        let mut history = AddressHistory::default();
        assert_eq!(history.order(found.clone(), now), found);
        history.mark_failed(found[0], now);
        let avoided = vec![found[1], found[2], found[0]];
        assert_eq!(history.order(found.clone(), now), avoided);
        let almost = now + AVOIDED_FOR - Duration::from_millis(1);
        assert_eq!(history.order(found.clone(), almost), avoided);
        assert_eq!(history.order(found.clone(), now + AVOIDED_FOR), found);
    }

    #[test]
    fn oldest_failure_is_tried_first() {
        let now = Instant::now();
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let mut history = AddressHistory::default();
        history.mark_failed(found[1], now);
        history.mark_failed(found[0], now + Duration::from_secs(1));
        let ordered = history.order(found.clone(), now + Duration::from_secs(2));
        assert_eq!(ordered, [found[1], found[0]]);
    }

    #[test]
    fn response_ends_the_avoidance() {
        let now = Instant::now();
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let mut history = AddressHistory::default();
        history.mark_failed(found[0], now);
        history.mark_responded(found[0]);
        assert_eq!(history.order(found.clone(), now), found);
    }

    #[test]
    fn duplicates_are_tried_once() {
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1", "10.0.0.1:2"]);
        let ordered = AddressHistory::default().order(found, Instant::now());
        assert_eq!(
            ordered,
            addresses(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2"])
        );
    }

    #[test]
    fn address_families_alternate() {
        let history = AddressHistory::default();
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1"]);
        assert_eq!(
            history.order(found, Instant::now()),
            addresses(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "[::3]:1"])
        );
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:1", "[::1]:1"]);
        assert_eq!(
            history.order(found, Instant::now()),
            addresses(&["10.0.0.1:1", "[::1]:1", "10.0.0.2:1"])
        );
    }

    #[test]
    fn old_failures_are_forgotten() {
        let now = Instant::now();
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let mut history = AddressHistory::default();
        history.mark_failed(found[0], now);
        history.mark_failed(found[1], now + AVOIDED_FOR);
        assert_eq!(history.failed_at.len(), 1);
    }
}
