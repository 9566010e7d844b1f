//! What etcd can't be made to do: keepalives that are counted, swallowed, refused.

use std::time::{Duration, Instant};

use actix_etcd::{
    Client, Lease,
    lease::{LeaseEvent, LeaseEvents, LostReason},
};
use tokio_stream::StreamExt;

use crate::support::{
    lease_recorder::LeaseRecorder,
    lease_server::{KEEP_ALIVE, KeepaliveResponse, LeaseServer, TTL},
    machine_delay::MachineDelay,
    quiet_window::ready_members,
    wait::until,
};

/// A leader, a follower, and a client that knows both.
async fn two() -> (LeaseServer, LeaseServer, Client) {
    let (leader, follower) = LeaseServer::start_pair().await;
    let endpoints = [leader.server.endpoint(), follower.server.endpoint()];
    let etcd = Client::connect(endpoints).await.unwrap();
    until("both are ready", || ready_members(&etcd) == 2).await;
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
async fn lost_lease_gets_no_more_keepalives() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let lease = kept(&etcd).await;
    let other = kept(&etcd).await;
    let recorder = LeaseRecorder::start(&lease, None);
    recorder.set_revoked();
    lease_server.set_response(lease.id(), KeepaliveResponse::Ttl(0));
    assert_eq!(lease.lost().await, LostReason::Revoked);
    let others = lease_server.keepalive_count(other.id());
    until("the other one is kept", || {
        lease_server.keepalive_count(other.id()) > others + 3
    })
    .await;
    recorder.set_keepalives(&lease_server.keepalive_times(lease.id()));
    recorder.check();
}

#[tokio::test]
async fn dropped_lease_gets_no_more_keepalives() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let other = kept(&etcd).await;
    let dropped = kept(&etcd).await;
    let id = dropped.id();
    let mut events = dropped.events();
    events.next().await.unwrap();
    drop(dropped);
    assert_eq!(events.next().await, None);
    // One that was on its way may still arrive; it comes before the other's next ones.
    renewed(&other, 2).await;
    let count = lease_server.keepalive_count(id);
    renewed(&other, 4).await;
    assert_eq!(lease_server.keepalive_count(id), count);
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
async fn keepalives_are_sent_every_third_of_ttl() {
    const TTL: Duration = Duration::from_secs(6);
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let machine_delay = MachineDelay::measure();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    lease_server.set_response(lease.id(), KeepaliveResponse::Ttl(6));
    let mut events = lease.events();
    let mut last = next_deadline(&mut events).await;
    for _ in 0..4 {
        let next = next_deadline(&mut events).await;
        let (gap, late) = (next - last, machine_delay.worst());
        last = next;
        // On a machine that makes answers late, they are not waited for.
        let least = if late < TTL / 12 { TTL / 3 } else { TTL / 6 };
        assert!(gap >= least, "{gap:?}, late {late:?}");
        assert!(gap < TTL / 2 + 3 * late, "{gap:?}, late {late:?}");
    }
    let streams = lease_server.server.count(KEEP_ALIVE);
    assert!(
        streams == 1 || machine_delay.worst() >= TTL / 12,
        "{streams}"
    );
}

#[tokio::test]
async fn unanswered_keepalive_moves_to_another_member() {
    const TTL: Duration = Duration::from_secs(6);
    let (leader, follower, etcd) = two().await;
    let machine_delay = MachineDelay::measure();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    for member in [&leader, &follower] {
        member.set_response(lease.id(), KeepaliveResponse::Ttl(6));
    }
    let mut events = lease.events();
    let mut last = next_deadline(&mut events).await;
    assert_eq!(
        follower.keepalive_count(lease.id()),
        0,
        "the leader is asked"
    );
    leader.set_response(lease.id(), KeepaliveResponse::None);
    // As the leader answers whatever else it is asked, nothing but the missing answer tells.
    let mut longest = Duration::ZERO;
    let mut moved = false;
    while !moved {
        // Looked at before the event is awaited, so that the gap in question is among those seen.
        moved = follower.keepalive_count(lease.id()) > 0;
        let next = next_deadline(&mut events).await;
        longest = longest.max(next - last);
        last = next;
    }
    let late = machine_delay.worst();
    assert!(longest >= TTL / 2, "one in flight: {longest:?}");
    assert!(
        longest < TTL * 3 / 4 + 3 * late,
        "{longest:?}, late {late:?}"
    );
}

#[tokio::test]
async fn next_member_gets_full_response_timeout() {
    let (leader, follower, etcd) = two().await;
    let machine_delay = MachineDelay::measure();
    let lease = etcd.lease(3 * TTL).keep_alive().await.unwrap();
    leader.set_response(lease.id(), KeepaliveResponse::None);
    follower.set_response(lease.id(), KeepaliveResponse::None);
    until("both were asked, and one again", || {
        follower.keepalive_count(lease.id()) > 0
            && leader.keepalive_count(lease.id()) + follower.keepalive_count(lease.id()) > 2
    })
    .await;
    let mut times = leader.keepalive_times(lease.id());
    times.extend(follower.keepalive_times(lease.id()));
    times.sort();
    let patience = 3 * TTL / 6;
    for pair in times.windows(2) {
        let (gap, late) = (pair[1] - pair[0], machine_delay.worst());
        assert!(gap + 2 * late >= patience * 3 / 4, "{gap:?}, late {late:?}");
    }
}

#[tokio::test]
async fn silent_stream_is_left_by_all_leases() {
    let (leader, follower, etcd) = two().await;
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(kept(&etcd).await);
    }
    renewed(&leases[49], 1).await;
    for lease in &leases {
        leader.set_response(lease.id(), KeepaliveResponse::None);
    }
    let recorders: Vec<_> = leases
        .iter()
        .map(|lease| LeaseRecorder::start(lease, None))
        .collect();
    for lease in &leases {
        until("it is kept by the other member", || {
            follower.keepalive_count(lease.id()) > 2
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
async fn refused_lease_is_lost_without_affecting_others() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let refused = kept(&etcd).await;
    let allowed = kept(&etcd).await;
    lease_server.set_response(refused.id(), KeepaliveResponse::PermissionDenied);
    assert_eq!(refused.lost().await, LostReason::PermissionDenied);
    renewed(&allowed, 4).await;
}

#[tokio::test]
async fn unanswered_keepalives_cause_no_storm() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let lease = kept(&etcd).await;
    lease_server.set_response(lease.id(), KeepaliveResponse::None);
    assert_eq!(lease.lost().await, LostReason::NeverConfirmed);
    let count = lease_server.keepalive_count(lease.id());
    // At most six until its deadline, a sixth of the TTL apart, and six after it, with pauses as long in between.
    assert!(
        (5..=12).contains(&count),
        "{count} keepalives in six seconds"
    );
}

#[actix::test]
async fn idle_keepalive_stream_is_closed() {
    let lease_server = LeaseServer::start().await;
    let builder = Client::builder([lease_server.server.endpoint()]).on_current_arbiter();
    let etcd = builder.connect().await.unwrap();
    let lease = kept(&etcd).await;
    renewed(&lease, 1).await;
    assert_eq!(lease_server.open_streams(), 1);
    drop(lease);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    until("the stream is closed", || lease_server.open_streams() == 0).await;
    assert_eq!(
        lease_server.server.accepted(),
        1,
        "and its connection is not"
    );
}
