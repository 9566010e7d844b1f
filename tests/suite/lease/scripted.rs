//! Keepalives against a scripted server, which counts, ignores or refuses them.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, Lease,
    lease::{LeaseEvent, LeaseEvents, LeaseLost},
    proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse},
};
use testbed::Reply;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    lease_recorder::LeaseRecorder,
    lease_server::{KEEP_ALIVE, KeepaliveResponse, LeaseServer, TTL},
    machine_delay::MachineDelay,
    quiet_window::ready_members,
    wait::{TEST_TIMEOUT, until},
};

/// Starts a leader and a follower, and connects a client to both.
async fn leader_follower_and_client() -> (LeaseServer, LeaseServer, Client) {
    let (leader, follower) = LeaseServer::start_pair().await;
    let endpoints = [leader.server.endpoint(), follower.server.endpoint()];
    let etcd = Client::connect(endpoints).await.unwrap();
    until("both members are ready", || ready_members(&etcd) == 2).await;
    (leader, follower, etcd)
}

async fn kept_lease(etcd: &Client) -> Lease {
    etcd.lease(TTL).keep_alive().await.unwrap()
}

/// Checks that the next events of the lease are this many renewals.
async fn expect_renewals(lease: &Lease, times: usize) {
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
    let lease = kept_lease(&etcd).await;
    let other = kept_lease(&etcd).await;
    let recorder = LeaseRecorder::start(&lease, None);
    recorder.set_revoked();
    lease_server.set_response(lease.id(), KeepaliveResponse::Ttl(0));
    assert_eq!(lease.lost().await, LeaseLost::Revoked);
    let before = lease_server.keepalive_count(other.id());
    until("the other lease gets keepalives", || {
        lease_server.keepalive_count(other.id()) > before + 3
    })
    .await;
    recorder.set_keepalives(&lease_server.keepalive_times(lease.id()));
    recorder.check();
}

#[tokio::test]
async fn responses_in_reverse_order_renew_every_lease() {
    const LEASES: usize = 8;
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    // Responds once, to the newest keepalive first, when every lease has sent one.
    lease_server.on_keepalive_stream(|_, _| {
        Reply::streaming(async move |mut sender, mut receiver| {
            let mut received: Vec<i64> = Vec::new();
            while let Some(request) = receiver.recv_message::<LeaseKeepAliveRequest>().await {
                received.push(request.id);
                let leases: HashSet<_> = received.iter().collect();
                if leases.len() == LEASES {
                    break;
                }
            }
            for id in received.into_iter().rev() {
                let response = LeaseKeepAliveResponse {
                    id,
                    ttl: 30,
                    ..LeaseKeepAliveResponse::default()
                };
                let _ = sender.send(&response).await;
            }
            while receiver.recv().await.is_some() {}
        })
    });
    let mut leases = Vec::new();
    for _ in 0..LEASES {
        leases.push(etcd.lease(3 * TTL).keep_alive().await.unwrap());
    }
    let subscriptions: Vec<_> = leases.iter().map(Lease::events).collect();
    for (lease, mut events) in leases.iter().zip(subscriptions) {
        let event = timeout(TEST_TIMEOUT, events.next()).await.unwrap();
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
        // Counted from the keepalive that was sent, which is before now.
        assert!(lease.remaining() < Duration::from_secs(30));
    }
}

#[tokio::test]
async fn dropped_lease_gets_no_more_keepalives() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let other = kept_lease(&etcd).await;
    let dropped = kept_lease(&etcd).await;
    let id = dropped.id();
    let mut events = dropped.events();
    events.next().await.unwrap();
    drop(dropped);
    assert_eq!(events.next().await, None);
    // A keepalive in flight may still arrive, but before the next ones of the other lease.
    expect_renewals(&other, 2).await;
    let count = lease_server.keepalive_count(id);
    expect_renewals(&other, 4).await;
    assert_eq!(lease_server.keepalive_count(id), count);
}

/// Returns the deadline in the next renewal: the send time of its keepalive plus the TTL. Network and scheduler do not
/// affect it.
async fn next_deadline(events: &mut LeaseEvents) -> Instant {
    let event = events.next().await;
    let Some(LeaseEvent::Renewed { deadline }) = event else {
        panic!("not renewed: {event:?}");
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
        let (gap, worst_delay) = (next - last, machine_delay.worst());
        last = next;
        // A slow machine delays responses beyond their timeout, and the client sends the next keepalive earlier.
        let min_gap = if worst_delay < TTL / 12 {
            TTL / 3
        } else {
            TTL / 6
        };
        assert!(gap >= min_gap, "gap {gap:?}, machine delay {worst_delay:?}");
        assert!(
            gap < TTL / 2 + 3 * worst_delay,
            "gap {gap:?}, machine delay {worst_delay:?}"
        );
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
    let (leader, follower, etcd) = leader_follower_and_client().await;
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
        "keepalive sent to the follower"
    );
    leader.set_response(lease.id(), KeepaliveResponse::None);
    // The leader responds to all other requests, so only the missing response reveals the fault.
    let mut longest = Duration::ZERO;
    let mut moved = false;
    while !moved {
        // Checked before the next renewal, so that the gap during the move is measured.
        moved = follower.keepalive_count(lease.id()) > 0;
        let next = next_deadline(&mut events).await;
        longest = longest.max(next - last);
        last = next;
    }
    let worst_delay = machine_delay.worst();
    assert!(
        longest >= TTL / 2,
        "no keepalive was unanswered: {longest:?}"
    );
    assert!(
        longest < TTL * 3 / 4 + 3 * worst_delay,
        "gap {longest:?}, machine delay {worst_delay:?}"
    );
}

#[tokio::test]
async fn next_member_gets_full_response_timeout() {
    let (leader, follower, etcd) = leader_follower_and_client().await;
    let machine_delay = MachineDelay::measure();
    let lease = etcd.lease(3 * TTL).keep_alive().await.unwrap();
    leader.set_response(lease.id(), KeepaliveResponse::None);
    follower.set_response(lease.id(), KeepaliveResponse::None);
    until(
        "three keepalives have arrived, not all at the leader",
        || {
            follower.keepalive_count(lease.id()) > 0
                && leader.keepalive_count(lease.id()) + follower.keepalive_count(lease.id()) > 2
        },
    )
    .await;
    let mut times = leader.keepalive_times(lease.id());
    times.extend(follower.keepalive_times(lease.id()));
    times.sort();
    let response_timeout = 3 * TTL / 6;
    for pair in times.windows(2) {
        let (gap, worst_delay) = (pair[1] - pair[0], machine_delay.worst());
        assert!(
            gap + 2 * worst_delay >= response_timeout * 3 / 4,
            "gap {gap:?}, machine delay {worst_delay:?}"
        );
    }
}

#[tokio::test]
async fn silent_stream_is_left_by_all_leases() {
    let (leader, follower, etcd) = leader_follower_and_client().await;
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(kept_lease(&etcd).await);
    }
    expect_renewals(&leases[49], 1).await;
    for lease in &leases {
        leader.set_response(lease.id(), KeepaliveResponse::None);
    }
    let recorders: Vec<_> = leases
        .iter()
        .map(|lease| LeaseRecorder::start(lease, None))
        .collect();
    for lease in &leases {
        until("the follower gets keepalives", || {
            follower.keepalive_count(lease.id()) > 2
        })
        .await;
    }
    for recorder in &recorders {
        recorder.check_alive().await;
    }
    // The client closed the silent stream and returns to the leader on a new one.
    until("the leader gets a new stream", || {
        leader.server.count(KEEP_ALIVE) > 1
    })
    .await;
}

#[tokio::test]
async fn refused_lease_is_lost_without_affecting_others() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let refused = kept_lease(&etcd).await;
    let allowed = kept_lease(&etcd).await;
    lease_server.set_response(refused.id(), KeepaliveResponse::PermissionDenied);
    assert_eq!(refused.lost().await, LeaseLost::PermissionDenied);
    expect_renewals(&allowed, 4).await;
}

#[tokio::test]
async fn unanswered_keepalives_cause_no_storm() {
    let (lease_server, etcd) = LeaseServer::start_with_client().await;
    let lease = kept_lease(&etcd).await;
    lease_server.set_response(lease.id(), KeepaliveResponse::None);
    assert_eq!(lease.lost().await, LeaseLost::NeverConfirmed);
    let count = lease_server.keepalive_count(lease.id());
    // At most six before the deadline, a sixth of the TTL apart, and six after it at the same interval.
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
    let lease = kept_lease(&etcd).await;
    expect_renewals(&lease, 1).await;
    assert_eq!(lease_server.open_streams(), 1);
    drop(lease);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    until("the stream is closed", || lease_server.open_streams() == 0).await;
    assert_eq!(
        lease_server.server.accepted(),
        1,
        "the connection was replaced"
    );
}
