//! Many leases through etcd's gRPC proxy, which responds to keepalives late and in any order.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client,
    lease::{LeaseEvent, LeaseEvents},
};
use testbed::{Cluster, GrpcProxy};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::wait::hold;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the time to keep leases: `LEASE_SECS` seconds if that variable is set.
fn keeping_time(default: Duration) -> Duration {
    let secs = std::env::var("LEASE_SECS").ok();
    let secs = secs.map(|secs| secs.parse().expect("LEASE_SECS is a number"));
    secs.map_or(default, Duration::from_secs)
}

/// Counts of the events of many leases.
#[derive(Debug, Default)]
struct EventCounts {
    /// Renewals per lease.
    renewals: BTreeMap<i64, usize>,
    at_risk: usize,
    lost: usize,
}

impl EventCounts {
    /// Adds the events since the last call.
    async fn read(&mut self, streams: &mut [(i64, LeaseEvents)]) {
        for (lease, events) in streams {
            while let Ok(Some(event)) = timeout(Duration::ZERO, events.next()).await {
                match event {
                    LeaseEvent::AtRisk { .. } => self.at_risk += 1,
                    LeaseEvent::Lost(_) => self.lost += 1,
                    _ => *self.renewals.entry(*lease).or_default() += 1,
                }
            }
        }
    }
}

/// Keeps leases alive through a proxy for at least `duration` and until each was renewed twice. Fails if one is at risk.
async fn check_leases(count: usize, ttl: Duration, duration: Duration) {
    let cluster = Cluster::start(1).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..count {
        leases.push(etcd.lease(ttl).keep_alive().await.unwrap());
    }
    let streams = leases.iter().map(|lease| (lease.id(), lease.events()));
    let mut streams: Vec<_> = streams.collect();
    let start = Instant::now();
    let mut counts = EventCounts::default();
    let renewed_twice = |counts: &EventCounts| {
        counts.renewals.len() == count && counts.renewals.values().all(|times| *times >= 2)
    };
    while start.elapsed() < duration || !renewed_twice(&counts) {
        hold(SECOND).await;
        counts.read(&mut streams).await;
        assert_eq!((counts.at_risk, counts.lost), (0, 0), "{counts:?}");
        assert!(start.elapsed() < duration + 2 * ttl, "{counts:?}");
    }
    let total: usize = counts.renewals.values().sum();
    println!(
        "{count} leases renewed {total} times in {:?}",
        start.elapsed()
    );
    assert_eq!(etcd.leases().await.unwrap().leases.len(), count);
}

#[tokio::test]
async fn no_lease_is_at_risk_through_grpc_proxy() {
    check_leases(40, 6 * SECOND, keeping_time(18 * SECOND)).await;
}

#[tokio::test]
async fn thousand_leases_are_renewed_through_grpc_proxy() {
    check_leases(1_000, 20 * SECOND, keeping_time(20 * SECOND)).await;
}
