//! Keepalives that wait because no member can be asked.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, Lease,
    lease::{LeaseEvent, LeaseLost},
};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    lease_server::{Answer, Lessor},
    machine_delay::Lateness,
    wait::{hold, until},
};

/// Long against what a busy machine is late: an answer is waited for a second.
const TTL: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(1);
/// Longer than anything here takes on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

async fn server_and_client() -> (Lessor, Client) {
    let lessor = Lessor::start().await;
    let etcd = Client::connect([lessor.server.endpoint()]).await.unwrap();
    (lessor, etcd)
}

async fn kept(lessor: &Lessor, etcd: &Client, answer: Answer) -> Lease {
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    lessor.answer(lease.id(), answer);
    lease
}

/// Waits until it was renewed twice: whatever was to be sent before has arrived.
async fn renewed_twice(lessor: &Lessor, lease: &Lease) {
    let before = lessor.count(lease.id());
    until("it is kept again", || lessor.count(lease.id()) > before + 1).await;
}

#[tokio::test]
async fn a_lease_given_up_in_an_outage_is_not_kept_alive_after_it() {
    let (lessor, etcd) = server_and_client().await;
    let other = kept(&lessor, &etcd, Answer::Ttl(6)).await;
    let given_up = etcd
        .lease(Duration::from_secs(2))
        .keep_alive()
        .give_up_after(Duration::ZERO)
        .await
        .unwrap();
    lessor.go_away();
    let lost = timeout(AT_MOST, given_up.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::NeverConfirmed));
    let before = lessor.count(given_up.id());
    lessor.come_back();
    renewed_twice(&lessor, &other).await;
    assert_eq!(lessor.count(given_up.id()), before);
}

#[tokio::test]
async fn a_renewal_nobody_waits_for_any_more_is_not_sent_after_an_outage() {
    let (lessor, etcd) = server_and_client().await;
    let other = kept(&lessor, &etcd, Answer::Ttl(6)).await;
    lessor.go_away();
    until("nobody can be asked", || lessor.server.connections() == 0).await;
    let once = etcd.keep_alive_once(4711).timeout(PATIENCE / 2).await;
    assert_eq!(once.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    lessor.come_back();
    renewed_twice(&lessor, &other).await;
    assert_eq!(lessor.count(4711), 0);
}

#[tokio::test]
async fn a_deadline_is_told_on_time_when_the_last_member_goes_just_before_it() {
    let (lessor, etcd) = server_and_client().await;
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(kept(&lessor, &etcd, Answer::Nothing).await);
    }
    let lateness = Lateness::watch();
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
    lessor.go_away();
    for told in told {
        let after = timeout(AT_MOST, told).await.unwrap().unwrap();
        let late = lateness.worst();
        assert!(after < PATIENCE / 3 + 3 * late, "{after:?}, late {late:?}");
    }
}

#[tokio::test]
async fn a_keepalive_sent_after_an_outage_gets_its_time_to_be_answered() {
    let (lessor, etcd) = server_and_client().await;
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(kept(&lessor, &etcd, Answer::Nothing).await);
    }
    lessor.go_away();
    // All are due by now, and written off at times of their own.
    hold(TTL * 2 / 3).await;
    let lateness = Lateness::watch();
    lessor.come_back();
    for lease in &leases {
        until("it is asked for again", || lessor.count(lease.id()) > 1).await;
        let times = lessor.times(lease.id());
        let (gap, late) = (times[1] - times[0], lateness.worst());
        assert!(gap + 2 * late >= PATIENCE * 3 / 4, "{gap:?}, late {late:?}");
    }
}
