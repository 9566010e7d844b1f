//! A kept lease lives through the faults of any one member, and through crashes of the client's own actors.

use std::time::Duration;

use actix_etcd::{Client, lease::LeaseEvent, testing};
use testbed::{
    Chaos, ChaosKind, Cluster, Direction, Fault, Member,
    lease_validators::{LeaseRecord, Told},
};
use tokio_stream::StreamExt;

use crate::lease_record::Recorder;

const TTL: Duration = Duration::from_secs(3);
/// Longer than the lease lives.
const FAULT: Duration = Duration::from_secs(4);

/// A keepalive is due, overdue, and answered by the next member, with time to spare on a busy machine: what waits for
/// TCP, pings or slow probes takes longer.
const LONGEST_GAP: Duration = Duration::from_millis(2_900);

fn longest_gap(record: &LeaseRecord) -> Duration {
    let renewed = record.told.iter().filter_map(|(at, told)| match told {
        Told::Renewed { .. } => Some(*at),
        Told::AtRisk { .. } | Told::Lost(_) => None,
    });
    let renewed: Vec<Duration> = renewed.collect();
    let gaps = renewed
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]));
    gaps.max().unwrap_or_default()
}

/// Runs a lease through a fault of each member in turn.
async fn live_through<B, R>(begin: B, end: R) -> LeaseRecord
where
    B: AsyncFn(&Cluster, &Member),
    R: AsyncFn(&Cluster, &Member),
{
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    etcd.put("mine", "alive").lease(&lease).await.unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    for member in cluster.members() {
        let leads = cluster.leader().await == member.index();
        begin(&cluster, &member).await;
        tokio::time::sleep(FAULT).await;
        end(&cluster, &member).await;
        let record = recorder.check_alive();
        println!(
            "member {} (leader: {leads}): {:?}",
            member.index(),
            record.told.last()
        );
        cluster.wait_healthy().await;
    }
    assert_eq!(etcd.get("mine").await.unwrap().count, 1);
    let record = recorder.check_alive();
    assert!(record.probes.iter().filter(|probe| probe.ttl > 0).count() > 20);
    println!("longest gap {:?}", longest_gap(&record));
    record
}

#[tokio::test]
async fn a_lease_lives_through_killed_members() {
    live_through(
        async |_, member| member.kill(),
        async |_, member| member.start().await,
    )
    .await;
}

#[tokio::test]
async fn a_lease_lives_through_frozen_members() {
    live_through(
        async |_, member| member.freeze(),
        async |_, member| member.thaw(),
    )
    .await;
}

#[tokio::test]
async fn a_lease_lives_through_members_cut_off_from_their_peers() {
    live_through(
        async |cluster, member| cluster.isolate(member.index()),
        async |cluster, _| cluster.heal(),
    )
    .await;
}

#[tokio::test]
async fn a_lease_lives_through_frozen_links() {
    let record = live_through(
        async |_, member| member.client_link().set(Fault::Freeze),
        async |_, member| member.client_link().heal(),
    )
    .await;
    assert!(longest_gap(&record) < LONGEST_GAP, "{:#?}", record.told);
}

#[tokio::test]
async fn a_lease_lives_through_links_that_carry_no_answers() {
    let record = live_through(
        async |_, member| {
            member
                .client_link()
                .set(Fault::HalfOpen(Direction::ToClient));
        },
        async |_, member| member.client_link().heal(),
    )
    .await;
    assert!(longest_gap(&record) < LONGEST_GAP, "{:#?}", record.told);
}

#[tokio::test]
async fn a_lease_lives_through_resets_and_refusals() {
    live_through(
        async |_, member| member.client_link().set(Fault::Reset),
        async |_, member| member.client_link().heal(),
    )
    .await;
}

#[tokio::test]
async fn a_lease_lives_through_leader_changes_in_a_loop() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    let chaos = Chaos::from_env("leader changes")
        .pauses(Duration::from_millis(50), Duration::from_millis(500));
    let done = chaos.run(&cluster, &[ChaosKind::MoveLeader]).await;
    assert!(done.len() > 3, "{done:?}");
    recorder.check_alive();
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
}

#[tokio::test]
async fn leases_live_through_chaos() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let lease = etcd.lease(2 * TTL).keep_alive().await.unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    let chaos = Chaos::from_env("leases");
    chaos.run(&cluster, &ChaosKind::ALL).await;
    recorder.check_alive();
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
}

#[tokio::test]
async fn crashes_of_every_actor_involved_cost_no_lease() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(etcd.lease(TTL).keep_alive().await.unwrap());
    }
    let recorder = Recorder::start(&leases[0], Some(&cluster));
    let endpoints = cluster.endpoints();
    // A supervisor pauses longer after each crash in a row: few for each actor, and every moment of a lease is hit.
    for round in 0..30 {
        for lease in leases.iter().skip(round % 6).step_by(6) {
            testing::crash_lease(&etcd, lease.id());
        }
        if round % 5 == 0 {
            testing::crash_lease_keeper(&etcd);
            testing::crash_balancer(&etcd);
        }
        testing::crash_connection(&etcd, &endpoints[round % 3]).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    recorder.check_alive();
    for lease in &leases {
        assert!(lease.remaining() > Duration::ZERO, "{lease:?}");
    }
    let all: Vec<_> = leases.iter().map(actix_etcd::Lease::events).collect();
    for mut events in all {
        let event = tokio::time::timeout(2 * TTL, events.next()).await;
        assert!(
            matches!(event, Ok(Some(LeaseEvent::Renewed { .. }))),
            "{event:?}"
        );
    }
    assert_eq!(etcd.leases().await.unwrap().leases.len(), leases.len());
}
