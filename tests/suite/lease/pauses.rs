//! Leases of a process that is paused for longer than their TTL.

use std::time::Duration;

use actix_etcd::{
    Client,
    lease::{LeaseEvent, LeaseLost},
};
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::wait::{TEST_TIMEOUT, hold};

const TTL: Duration = Duration::from_secs(2);

/// Blocks the thread of the client and of the test, as a pause of the process does.
fn pause_process(duration: Duration) {
    std::thread::sleep(duration);
}

#[actix::test]
async fn paused_client_never_claims_an_expired_lease() {
    let cluster = Cluster::start(1).await;
    for round in 0..3 {
        let builder = Client::builder(cluster.endpoints()).on_current_arbiter();
        let etcd = builder.connect().await.unwrap();
        let session = etcd.session(TTL).await.unwrap();
        let lease = etcd.lease(TTL).keep_alive().await.unwrap();
        let mut events = lease.events();
        events.next().await.unwrap();
        // Pauses at different times between two keepalives, or with one in flight.
        hold(TTL / 12 * round).await;
        while timeout(Duration::ZERO, events.next()).await.is_ok() {}
        let lost = session.lost();
        pause_process(3 * TTL);
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert_eq!(session.remaining(), Duration::ZERO);
        let mut seen = Vec::new();
        while let Some(event) = timeout(TEST_TIMEOUT, events.next()).await.unwrap() {
            assert_eq!(lease.remaining(), Duration::ZERO, "{seen:?}, {event:?}");
            assert_eq!(session.remaining(), Duration::ZERO);
            seen.push(event);
        }
        assert!(
            matches!(
                seen.as_slice(),
                [
                    LeaseEvent::AtRisk { .. },
                    LeaseEvent::Lost(LeaseLost::Expired)
                ]
            ),
            "{seen:?}"
        );
        let reason = timeout(TEST_TIMEOUT, lost).await.unwrap();
        assert_eq!(reason, LeaseLost::Expired);
    }
}
