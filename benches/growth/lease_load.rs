//! Keeps many leases alive.

use std::time::Duration;

use actix_etcd::{Lease, lease::LeaseEvent};
use serde_json::Value;
use tokio_stream::StreamExt;

use crate::{
    client_process::builder,
    usage::{Usage, figures},
};

/// TTL that the server grants.
const TTL: Duration = Duration::from_secs(10);
/// Number of leases granted concurrently.
const GRANTS: usize = 64;
/// Time until each lease was renewed once, which allocates all buffers.
const WARM_UP: Duration = Duration::from_millis(3_700);
const MEASURED: Duration = Duration::from_secs(7);
/// Number of leases whose renewals are counted.
const SAMPLE: usize = 50;

pub async fn keep(count: usize, endpoints: &[&str]) -> Value {
    let etcd = builder(endpoints).connect().await.expect("connect");
    let grant = || etcd.lease(TTL).keep_alive().into_future();
    // The first lease also starts the keepalive stream, which is not part of the cost per lease.
    let _first = grant().await.expect("grant a lease");
    let before = Usage::now();
    let mut leases: Vec<Lease> = Vec::with_capacity(count);
    while leases.len() < count {
        let batch = GRANTS.min(count - leases.len());
        let granting: Vec<_> = (0..batch).map(|_| tokio::spawn(grant())).collect();
        for granted in granting {
            leases.push(granted.await.expect("no panic").expect("grant a lease"));
        }
    }
    tokio::time::sleep(WARM_UP).await;
    let sample = count.min(SAMPLE);
    let counting: Vec<_> = (0..sample)
        .map(|number| {
            // Leases granted together are renewed together, so the sample is spread over all.
            let events = leases[number * count / sample].events();
            tokio::spawn(count_renewals(events))
        })
        .collect();
    let started = Usage::now();
    tokio::time::sleep(MEASURED).await;
    let ended = Usage::now();
    let mut renewals = 0;
    for counted in counting {
        renewals += counted.await.expect("no panic");
    }
    let renewals_per_lease = f64::from(renewals) / sample as f64;
    assert!(renewals_per_lease >= 1.0, "the leases are not kept alive");
    let lost = leases.iter().filter(|lease| lease.remaining().is_zero());
    assert_eq!(lost.count(), 0, "leases were lost");
    let units = count as f64;
    figures(&[
        ("bytes", ended.bytes_since(&before, units)),
        (
            "cpu_us",
            ended.micros_since(&started, units * renewals_per_lease),
        ),
    ])
}

async fn count_renewals(mut events: actix_etcd::lease::LeaseEvents) -> u32 {
    let mut renewals = 0;
    let counting = async {
        while let Some(event) = events.next().await {
            renewals += u32::from(matches!(event, LeaseEvent::Renewed { .. }));
        }
    };
    let _ = tokio::time::timeout(MEASURED, counting).await;
    renewals
}
