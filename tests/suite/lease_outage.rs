//! Keepalives that wait because no member can be asked.

use std::time::Duration;

use actix_etcd::{Client, Lease, lease::LeaseEvent};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::{
    lateness::Lateness,
    lessor::{Answer, Lessor},
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
