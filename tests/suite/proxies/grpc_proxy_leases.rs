//! Many leases through etcd's gRPC proxy, which responds to keepalives late and in any order.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, Lease,
    lease::{LeaseEvent, LeaseEvents},
};
use testbed::{Cluster, GrpcProxy};
use tokio_stream::StreamExt;

use crate::support::wait::hold;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the time to hold leases: `LEASE_SECS` seconds if that variable is set.
fn hold_time(default: Duration) -> Duration {
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
    /// Reads the events so far.
    async fn read(streams: &mut [(i64, LeaseEvents)]) -> Self {
        let mut counts = Self::default();
        for (lease, events) in streams {
            while let Ok(Some(event)) = tokio::time::timeout(Duration::ZERO, events.next()).await {
                match event {
                    LeaseEvent::Renewed { .. } => *counts.renewals.entry(*lease).or_default() += 1,
                    LeaseEvent::AtRisk { .. } => counts.at_risk += 1,
                    LeaseEvent::Lost(_) => counts.lost += 1,
                    _ => {}
                }
            }
        }
        counts
    }
}

async fn keep_leases(etcd: &Client, count: usize, ttl: Duration) -> Vec<Lease> {
    let mut leases = Vec::new();
    for _ in 0..count {
        leases.push(etcd.lease(ttl).keep_alive().await.unwrap());
    }
    leases
}

#[tokio::test]
async fn no_lease_is_at_risk_through_grpc_proxy() {
    const TTL: Duration = Duration::from_secs(6);
    let cluster = Cluster::start(1).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    let leases = keep_leases(&etcd, 40, TTL).await;
    let streams = leases.iter().map(|lease| (lease.id(), lease.events()));
    let mut streams: Vec<_> = streams.collect();
    let held = hold_time(3 * TTL);
    let start = Instant::now();
    let mut counts = EventCounts::default();
    while start.elapsed() < held {
        hold(SECOND).await;
        let read = EventCounts::read(&mut streams).await;
        counts.at_risk += read.at_risk;
        counts.lost += read.lost;
        for (lease, renewals) in read.renewals {
            *counts.renewals.entry(lease).or_default() += renewals;
        }
    }
    println!("{counts:?}");
    assert_eq!((counts.at_risk, counts.lost), (0, 0), "{counts:?}");
    let renewals = leases.iter().map(|lease| counts.renewals.get(&lease.id()));
    let fewest = renewals.min().flatten().copied().unwrap_or(0);
    assert!(fewest >= 2, "{counts:?}");
    assert_eq!(etcd.leases().await.unwrap().leases.len(), leases.len());
}
