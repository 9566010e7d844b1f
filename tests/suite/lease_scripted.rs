//! What etcd can't be made to do: keepalives that are counted, swallowed, refused.

use std::time::Duration;

use actix_etcd::{
    Client, Lease,
    lease::{LeaseEvent, LostReason},
};
use tokio_stream::StreamExt;

use crate::{
    lateness::Lateness,
    lease_record::Recorder,
    lessor::{Answer, KEEP_ALIVE, Lessor, TTL},
    wait::until,
};

async fn one() -> (Lessor, Client) {
    let lessor = Lessor::start().await;
    let etcd = Client::connect([lessor.server.endpoint()]).await.unwrap();
    (lessor, etcd)
}

/// A leader, a follower, and a client that knows both.
async fn two() -> (Lessor, Lessor, Client) {
    let (leader, follower) = Lessor::pair().await;
    let endpoints = [leader.server.endpoint(), follower.server.endpoint()];
    let etcd = Client::connect(endpoints).await.unwrap();
    etcd.wait_ready(Duration::from_secs(30)).await.unwrap();
    (leader, follower, etcd)
}

async fn kept(etcd: &Client) -> Lease {
    etcd.lease(TTL).keep_alive().await.unwrap()
}

/// Fails if anything but so many renewals comes next.
async fn renewed(lease: &Lease, times: usize) {
    let mut events = lease.events();
    for _ in 0..times {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
    }
}

#[tokio::test]
async fn a_lost_lease_is_not_kept_alive_any_more() {
    let (lessor, etcd) = one().await;
    let lease = kept(&etcd).await;
    let other = kept(&etcd).await;
    let recorder = Recorder::start(&lease, None);
    recorder.revoking();
    lessor.answer(lease.id(), Answer::Ttl(0));
    assert_eq!(lease.lost().await, LostReason::Revoked);
    let others = lessor.count(other.id());
    until("the other one is kept", || {
        lessor.count(other.id()) > others + 3
    })
    .await;
    recorder.keepalives(&lessor.times(lease.id()));
    recorder.check();
}

#[tokio::test]
async fn a_lease_without_handle_is_not_kept_alive_any_more() {
    let (lessor, etcd) = one().await;
    let other = kept(&etcd).await;
    let dropped = kept(&etcd).await;
    let id = dropped.id();
    let mut events = dropped.events();
    events.next().await.unwrap();
    drop(dropped);
    assert_eq!(events.next().await, None);
    // One that was on its way may still arrive; it comes before the other's next ones.
    renewed(&other, 2).await;
    let count = lessor.count(id);
    renewed(&other, 4).await;
    assert_eq!(lessor.count(id), count);
}

#[tokio::test]
async fn keepalives_come_every_third_of_the_ttl_and_no_more_often() {
    let (lessor, etcd) = one().await;
    let lateness = Lateness::watch();
    let lease = kept(&etcd).await;
    let mut events = lease.events();
    let mut deadlines = Vec::new();
    while deadlines.len() < 7 {
        let Some(LeaseEvent::Renewed { deadline }) = events.next().await else {
            panic!("it is at risk");
        };
        deadlines.push(deadline);
    }
    // A deadline counts from when its keepalive was sent: no network and no scheduler is in between.
    for pair in deadlines.windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap >= TTL.div_f64(3.0), "{gap:?}");
        assert!(gap < TTL / 2 + lateness.worst(), "{gap:?}");
    }
    assert_eq!(lessor.server.count(KEEP_ALIVE), 1, "one stream");
}

#[tokio::test]
async fn a_keepalive_that_is_swallowed_goes_by_another_member_at_once() {
    let (leader, follower, etcd) = two().await;
    let lateness = Lateness::watch();
    let lease = kept(&etcd).await;
    renewed(&lease, 1).await;
    assert_eq!(follower.count(lease.id()), 0, "the leader is asked");
    let before = leader.count(lease.id());
    leader.answer(lease.id(), Answer::Nothing);
    renewed(&lease, 3).await;
    let swallowed = leader.times(lease.id())[before..].to_vec();
    let first = swallowed.first().expect("one was swallowed");
    let next = follower.times(lease.id());
    let next = next.first().expect("the other member was asked");
    let wait = next.saturating_duration_since(*first) + lateness.worst();
    assert!(wait >= TTL / 6, "one in flight: {wait:?}");
    // As the leader answers whatever else it is asked, nothing but the missing answer tells.
    assert!(wait < TTL / 2 + 3 * lateness.worst(), "{wait:?}");
}

#[tokio::test]
async fn a_stream_that_says_nothing_is_left_by_all_its_leases() {
    let (leader, follower, etcd) = two().await;
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(kept(&etcd).await);
    }
    renewed(&leases[49], 1).await;
    for lease in &leases {
        leader.answer(lease.id(), Answer::Nothing);
    }
    let recorders: Vec<_> = leases
        .iter()
        .map(|lease| Recorder::start(lease, None))
        .collect();
    for lease in &leases {
        until("it is kept by the other member", || {
            follower.count(lease.id()) > 2
        })
        .await;
    }
    for recorder in &recorders {
        recorder.check_alive();
    }
    // The silent stream was given up: the leader is asked again on another one.
    until("the leader gets a new stream", || {
        leader.server.count(KEEP_ALIVE) > 1
    })
    .await;
}

#[tokio::test]
async fn a_lease_this_user_may_not_keep_is_lost_and_its_neighbours_are_not() {
    let (lessor, etcd) = one().await;
    let refused = kept(&etcd).await;
    let allowed = kept(&etcd).await;
    lessor.answer(refused.id(), Answer::Refusal);
    assert_eq!(refused.lost().await, LostReason::PermissionDenied);
    renewed(&allowed, 4).await;
}

#[tokio::test]
async fn silence_makes_no_storm() {
    let (lessor, etcd) = one().await;
    let lease = kept(&etcd).await;
    lessor.answer(lease.id(), Answer::Nothing);
    assert_eq!(lease.lost().await, LostReason::NeverConfirmed);
    let count = lessor.count(lease.id());
    assert!(
        (4..=18).contains(&count),
        "{count} keepalives in six seconds"
    );
}
