//! Keepalives that wait because no member can be asked.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, Lease,
    lease::{LeaseEvent, LostReason},
};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    lease_server::{KeepaliveResponse, LeaseServer},
    machine_delay::MachineDelay,
    wait::{hold, until},
};

/// Long against what a busy machine is late: an answer is waited for a second.
const TTL: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(1);
/// Longer than anything here takes on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

async fn kept(lease_server: &LeaseServer, etcd: &Client, answer: KeepaliveResponse) -> Lease {
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    lease_server.set_response(lease.id(), answer);
    lease
}

/// Waits until it was renewed twice: whatever was to be sent before has arrived.
async fn renewed_twice(lease_server: &LeaseServer, lease: &Lease) {
    let before = lease_server.keepalive_count(lease.id());
    until("it is kept again", || {
        lease_server.keepalive_count(lease.id()) > before + 1
    })
    .await;
}

#[tokio::test]
async fn lease_lost_during_outage_is_not_renewed_afterwards() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let other = kept(&lease_server, &etcd, KeepaliveResponse::Ttl(6)).await;
    let given_up = etcd
        .lease(Duration::from_secs(2))
        .keep_alive()
        .give_up_after(Duration::ZERO)
        .await
        .unwrap();
    lease_server.go_offline();
    let lost = timeout(AT_MOST, given_up.lost()).await;
    assert_eq!(lost, Ok(LostReason::NeverConfirmed));
    let before = lease_server.keepalive_count(given_up.id());
    lease_server.go_online();
    renewed_twice(&lease_server, &other).await;
    assert_eq!(lease_server.keepalive_count(given_up.id()), before);
}

#[tokio::test]
async fn timed_out_renewal_is_not_sent_after_outage() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let other = kept(&lease_server, &etcd, KeepaliveResponse::Ttl(6)).await;
    lease_server.go_offline();
    until("nobody can be asked", || {
        lease_server.server.connections() == 0
    })
    .await;
    let once = etcd.keep_alive_once(4711).timeout(PATIENCE / 2).await;
    assert_eq!(once.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    lease_server.go_online();
    renewed_twice(&lease_server, &other).await;
    assert_eq!(lease_server.keepalive_count(4711), 0);
}

#[tokio::test]
async fn passed_deadline_is_reported_on_time_during_outage() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(kept(&lease_server, &etcd, KeepaliveResponse::None).await);
    }
    let machine_delay = MachineDelay::measure();
    let told = leases.iter().map(|lease| {
        let mut events = lease.events();
        tokio::spawn(async move {
            match events.next().await {
                Some(LeaseEvent::AtRisk { deadline }) => deadline.elapsed(),
                event => panic!("{event:?}"),
            }
        })
    });
    let told: Vec<_> = told.collect();
    until("the deadline is near", || {
        leases.iter().all(|lease| lease.remaining() < PATIENCE / 2)
    })
    .await;
    lease_server.go_offline();
    for told in told {
        let after = timeout(AT_MOST, told).await.unwrap().unwrap();
        let late = machine_delay.worst();
        assert!(after < PATIENCE / 3 + 3 * late, "{after:?}, late {late:?}");
    }
}

#[tokio::test]
async fn keepalive_after_outage_gets_full_response_timeout() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(kept(&lease_server, &etcd, KeepaliveResponse::None).await);
    }
    lease_server.go_offline();
    // All are due by now, and written off at times of their own.
    hold(TTL * 2 / 3).await;
    let machine_delay = MachineDelay::measure();
    lease_server.go_online();
    for lease in &leases {
        until("it is asked for again", || {
            lease_server.keepalive_count(lease.id()) > 1
        })
        .await;
        let times = lease_server.keepalive_times(lease.id());
        let (gap, late) = (times[1] - times[0], machine_delay.worst());
        assert!(gap + 2 * late >= PATIENCE * 3 / 4, "{gap:?}, late {late:?}");
    }
}
