//! What etcd can't be made to do: keepalives that are counted, swallowed, refused.

use std::time::{Duration, Instant};

use actix_etcd::{
    Client, Lease,
    lease::{LeaseEvent, LeaseEvents, LeaseLost},
};
use tokio_stream::StreamExt;

use crate::support::{
    lease_record::Recorder,
    lease_server::{Answer, KEEP_ALIVE, Lessor, TTL},
    machine_delay::Lateness,
    quiet_window::ready,
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
    until("both are ready", || ready(&etcd) == 2).await;
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
    assert_eq!(lease.lost().await, LeaseLost::Revoked);
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

/// When the next keepalive that is answered was sent, a TTL later: no network and no scheduler is in between.
async fn next_deadline(events: &mut LeaseEvents) -> Instant {
    let event = events.next().await;
    let Some(LeaseEvent::Renewed { deadline }) = event else {
        panic!("it is at risk: {event:?}");
    };
    deadline
}

#[tokio::test]
async fn keepalives_come_every_third_of_the_ttl_and_no_more_often() {
    const TTL: Duration = Duration::from_secs(6);
    let (lessor, etcd) = one().await;
    let lateness = Lateness::watch();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    lessor.answer(lease.id(), Answer::Ttl(6));
    let mut events = lease.events();
    let mut last = next_deadline(&mut events).await;
    for _ in 0..4 {
        let next = next_deadline(&mut events).await;
        let (gap, late) = (next - last, lateness.worst());
        last = next;
        // On a machine that makes answers late, they are not waited for.
        let least = if late < TTL / 12 { TTL / 3 } else { TTL / 6 };
        assert!(gap >= least, "{gap:?}, late {late:?}");
        assert!(gap < TTL / 2 + 3 * late, "{gap:?}, late {late:?}");
    }
    let streams = lessor.server.count(KEEP_ALIVE);
    assert!(streams == 1 || lateness.worst() >= TTL / 12, "{streams}");
}

#[tokio::test]
async fn a_keepalive_that_is_swallowed_goes_by_another_member_at_once() {
    const TTL: Duration = Duration::from_secs(6);
    let (leader, follower, etcd) = two().await;
    let lateness = Lateness::watch();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    for member in [&leader, &follower] {
        member.answer(lease.id(), Answer::Ttl(6));
    }
    let mut events = lease.events();
    let mut last = next_deadline(&mut events).await;
    assert_eq!(follower.count(lease.id()), 0, "the leader is asked");
    leader.answer(lease.id(), Answer::Nothing);
    // As the leader answers whatever else it is asked, nothing but the missing answer tells.
    let mut longest = Duration::ZERO;
    let mut moved = false;
    while !moved {
        // Looked at before the event is awaited, so that the gap in question is among those seen.
        moved = follower.count(lease.id()) > 0;
        let next = next_deadline(&mut events).await;
        longest = longest.max(next - last);
        last = next;
    }
    let late = lateness.worst();
    assert!(longest >= TTL / 2, "one in flight: {longest:?}");
    assert!(
        longest < TTL * 3 / 4 + 3 * late,
        "{longest:?}, late {late:?}"
    );
}

#[tokio::test]
async fn the_next_member_gets_its_time_to_answer_too() {
    let (leader, follower, etcd) = two().await;
    let lateness = Lateness::watch();
    let lease = etcd.lease(3 * TTL).keep_alive().await.unwrap();
    leader.answer(lease.id(), Answer::Nothing);
    follower.answer(lease.id(), Answer::Nothing);
    until("both were asked, and one again", || {
        follower.count(lease.id()) > 0 && leader.count(lease.id()) + follower.count(lease.id()) > 2
    })
    .await;
    let mut times = leader.times(lease.id());
    times.extend(follower.times(lease.id()));
    times.sort();
    let patience = 3 * TTL / 6;
    for pair in times.windows(2) {
        let (gap, late) = (pair[1] - pair[0], lateness.worst());
        assert!(gap + 2 * late >= patience * 3 / 4, "{gap:?}, late {late:?}");
    }
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
        recorder.check_alive().await;
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
    assert_eq!(refused.lost().await, LeaseLost::PermissionDenied);
    renewed(&allowed, 4).await;
}

#[tokio::test]
async fn silence_makes_no_storm() {
    let (lessor, etcd) = one().await;
    let lease = kept(&etcd).await;
    lessor.answer(lease.id(), Answer::Nothing);
    assert_eq!(lease.lost().await, LeaseLost::NeverConfirmed);
    let count = lessor.count(lease.id());
    // At most six until its deadline, a sixth of the TTL apart, and six after it, with pauses as long in between.
    assert!(
        (5..=12).contains(&count),
        "{count} keepalives in six seconds"
    );
}

#[actix::test]
async fn a_stream_without_leases_is_closed_after_a_while() {
    let lessor = Lessor::start().await;
    let builder = Client::builder([lessor.server.endpoint()]).on_current_arbiter();
    let etcd = builder.connect().await.unwrap();
    let lease = kept(&etcd).await;
    renewed(&lease, 1).await;
    assert_eq!(lessor.streams(), 1);
    drop(lease);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    until("the stream is closed", || lessor.streams() == 0).await;
    assert_eq!(lessor.server.accepted(), 1, "and its connection is not");
}
