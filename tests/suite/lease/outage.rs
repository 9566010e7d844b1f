//! Keepalives that are due while no member is reachable.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, Lease,
    lease::{LeaseEvent, LeaseLost},
};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    lease_server::{KeepaliveResponse, LeaseServer},
    machine_delay::MachineDelay,
    wait::{TEST_TIMEOUT, hold, until},
};

/// Long compared with the delay of a busy machine.
const TTL: Duration = Duration::from_secs(6);
/// Time that a keepalive waits for its response: a sixth of the TTL.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

async fn kept_lease(
    lease_server: &LeaseServer,
    etcd: &Client,
    response: KeepaliveResponse,
) -> Lease {
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    lease_server.set_response(lease.id(), response);
    lease
}

/// Waits for two keepalives of the lease. Everything sent before them has arrived then.
async fn wait_for_two_keepalives(lease_server: &LeaseServer, lease: &Lease) {
    let before = lease_server.keepalive_count(lease.id());
    until("two keepalives arrive", || {
        lease_server.keepalive_count(lease.id()) > before + 1
    })
    .await;
}

#[tokio::test]
async fn lease_lost_during_outage_is_not_renewed_afterwards() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let other = kept_lease(&lease_server, &etcd, KeepaliveResponse::Ttl(6)).await;
    let lost_lease = etcd
        .lease(Duration::from_secs(2))
        .keep_alive()
        .give_up_after(Duration::ZERO)
        .await
        .unwrap();
    lease_server.go_offline();
    let lost = timeout(TEST_TIMEOUT, lost_lease.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::NeverConfirmed));
    let before = lease_server.keepalive_count(lost_lease.id());
    lease_server.go_online();
    wait_for_two_keepalives(&lease_server, &other).await;
    assert_eq!(lease_server.keepalive_count(lost_lease.id()), before);
}

#[tokio::test]
async fn timed_out_renewal_is_not_sent_after_outage() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let other = kept_lease(&lease_server, &etcd, KeepaliveResponse::Ttl(6)).await;
    lease_server.go_offline();
    until("no connection is left", || {
        lease_server.server.connections() == 0
    })
    .await;
    let result = etcd
        .keep_alive_once(4711)
        .timeout(RESPONSE_TIMEOUT / 2)
        .await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    lease_server.go_online();
    wait_for_two_keepalives(&lease_server, &other).await;
    assert_eq!(lease_server.keepalive_count(4711), 0);
}

#[tokio::test]
async fn passed_deadline_is_reported_on_time_during_outage() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(kept_lease(&lease_server, &etcd, KeepaliveResponse::None).await);
    }
    let machine_delay = MachineDelay::measure();
    let delays = leases.iter().map(|lease| {
        let mut events = lease.events();
        tokio::spawn(async move {
            match events.next().await {
                Some(LeaseEvent::AtRisk { deadline }) => deadline.elapsed(),
                event => panic!("{event:?}"),
            }
        })
    });
    let delays: Vec<_> = delays.collect();
    until("the deadline is near", || {
        leases
            .iter()
            .all(|lease| lease.remaining() < RESPONSE_TIMEOUT / 2)
    })
    .await;
    lease_server.go_offline();
    for delay in delays {
        let after = timeout(TEST_TIMEOUT, delay).await.unwrap().unwrap();
        let worst_delay = machine_delay.worst();
        assert!(
            after < RESPONSE_TIMEOUT / 3 + 3 * worst_delay,
            "reported {after:?} after the deadline, machine delay {worst_delay:?}"
        );
    }
}

#[tokio::test]
async fn keepalive_after_outage_gets_full_response_timeout() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(kept_lease(&lease_server, &etcd, KeepaliveResponse::None).await);
    }
    lease_server.go_offline();
    // All keepalives are due by then and have timed out at different times.
    hold(TTL * 2 / 3).await;
    let machine_delay = MachineDelay::measure();
    lease_server.go_online();
    for lease in &leases {
        until("the next keepalive arrives", || {
            lease_server.keepalive_count(lease.id()) > 1
        })
        .await;
        let times = lease_server.keepalive_times(lease.id());
        let (gap, worst_delay) = (times[1] - times[0], machine_delay.worst());
        assert!(
            gap + 2 * worst_delay >= RESPONSE_TIMEOUT * 3 / 4,
            "gap {gap:?}, machine delay {worst_delay:?}"
        );
    }
}

#[actix::test]
async fn suspended_client_reports_risk_during_outage() {
    let lease_server = LeaseServer::start().await;
    let builder = Client::builder([lease_server.server.endpoint()]).on_current_arbiter();
    let etcd = builder.connect().await.unwrap();
    let lease = kept_lease(&lease_server, &etcd, KeepaliveResponse::Ttl(6)).await;
    let mut events = lease.events();
    lease_server.go_offline();
    // The first keepalive is due when two thirds of the TTL remain, and waits for a member.
    let due = TTL * 5 / 8;
    until("a keepalive waits for a member", || lease.remaining() < due).await;
    // Blocks the actors past the response timeout, but not past the deadline.
    std::thread::sleep(RESPONSE_TIMEOUT * 5 / 2);
    let event = timeout(TEST_TIMEOUT, events.next()).await;
    assert!(
        matches!(event, Ok(Some(LeaseEvent::AtRisk { .. }))),
        "{event:?}"
    );
}
