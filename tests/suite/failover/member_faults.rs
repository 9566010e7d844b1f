//! Faults of members under load. No write is applied twice, and no read fails while the cluster serves reads.

use std::time::Duration;

use actix_etcd::{Client, Error, ErrorKind, Outcome, balancer::ConnectivityState};
use testbed::{Chaos, ChaosKind, Cluster, Fault, Member};

use crate::support::{
    cluster_availability::{Availability, AvailabilityMonitor},
    traffic::{
        FailedRead, Readers, Writers, check_applied_at_most_once, error_counts, longest_gap,
    },
    wait::hold,
};

const PREFIX: &str = "failover/";

/// Injects the fault into each member in turn, under load, and checks all reads and writes. Returns the errors of the
/// writes.
async fn run_with_fault<B, R>(name: &str, begin: B, end: R) -> Vec<Error>
where
    B: AsyncFn(&Cluster, &Member),
    R: AsyncFn(&Cluster, &Member),
{
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("read", "me").await.unwrap();
    let mut errors = Vec::new();
    for member in cluster.members() {
        let is_leader = cluster.leader().await == member.index();
        let writers = Writers::start(&client, 4, &format!("{PREFIX}{}/", member.index()));
        let readers = Readers::start(&client, 2, "read");
        let monitor = AvailabilityMonitor::start(&cluster);
        writers.wait_for_writes(20).await;
        begin(&cluster, &member).await;
        hold(Duration::from_secs(3)).await;
        end(&cluster, &member).await;
        writers.wait_for_writes(20).await;
        let writes = writers.finish().await;
        let failed_reads = readers.finish_timed().await;
        println!(
            "{name}: member {} (leader: {is_leader}): longest gap {:?}, {} writes, {:?}",
            member.index(),
            longest_gap(&writes),
            writes.len(),
            error_counts(&writes),
        );
        check_reads(failed_reads, &monitor.finish().await);
        check_applied_at_most_once(&cluster, &format!("{PREFIX}{}/", member.index()), &writes)
            .await;
        errors.extend(writes.into_iter().filter_map(|write| write.result.err()));
        cluster.wait_healthy().await;
    }
    client.shutdown().await;
    errors
}

/// Checks that reads failed only while the cluster was unavailable, for example during an election.
fn check_reads(failed_reads: Vec<FailedRead>, availability: &Availability) {
    for FailedRead { sent, ended, error } in failed_reads {
        let longest = availability.longest_between(sent, ended);
        assert!(
            longest < Duration::from_secs(2),
            "a read failed although the cluster served for {longest:?} while it waited: {error}"
        );
    }
}

fn assert_unknown(errors: &[Error]) {
    for error in errors {
        assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
    }
}

#[tokio::test]
async fn killed_member_costs_no_read() {
    run_with_fault(
        "kill",
        async |_, member| member.kill(),
        async |_, member| member.start().await,
    )
    .await;
}

#[tokio::test]
async fn stopped_member_fails_only_unknown_writes() {
    let errors = run_with_fault(
        "stop",
        async |_, member| member.stop().await,
        async |_, member| member.start().await,
    )
    .await;
    assert_unknown(&errors);
}

#[tokio::test]
async fn frozen_member_costs_no_read() {
    run_with_fault(
        "freeze",
        async |_, member| member.freeze(),
        async |_, member| member.thaw(),
    )
    .await;
}

#[tokio::test]
async fn frozen_link_costs_no_read() {
    run_with_fault(
        "frozen link",
        async |_, member| member.client_link().set(Fault::Freeze),
        async |_, member| member.client_link().heal(),
    )
    .await;
}

#[tokio::test]
async fn isolated_member_costs_no_read() {
    run_with_fault(
        "isolate",
        async |cluster, member| cluster.isolate(member.index()),
        async |cluster, _| cluster.heal(),
    )
    .await;
}

#[tokio::test]
async fn repeated_resets_fail_only_unknown_writes() {
    let errors = run_with_fault(
        "reset",
        async |_, member| {
            for _ in 0..8 {
                member.client_link().reset_now();
                hold(Duration::from_millis(300)).await;
            }
        },
        async |_, member| member.client_link().heal(),
    )
    .await;
    assert_unknown(&errors);
}

#[tokio::test]
async fn full_outage_errors_are_timeouts_or_unknown() {
    let cluster = Cluster::start(3).await;
    let client = Client::builder(cluster.endpoints())
        .request_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    let writers = Writers::start(&client, 4, PREFIX);
    writers.wait_for_writes(20).await;
    for member in cluster.members() {
        member.kill();
    }
    hold(Duration::from_millis(2500)).await;
    cluster.start_all().await;
    writers.wait_for_writes(20).await;
    let writes = writers.finish().await;
    println!(
        "full outage: longest gap {:?}, {:?}",
        longest_gap(&writes),
        error_counts(&writes)
    );
    for error in writes
        .iter()
        .filter_map(|write| write.result.as_ref().err())
    {
        let timed_out = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded
        );
        assert!(
            timed_out || error.outcome() == Outcome::Unknown,
            "{error:?}"
        );
    }
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
}

#[tokio::test]
async fn serializable_read_uses_leaderless_member() {
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("k", "v").await.unwrap();
    cluster.member(0).kill();
    cluster.member(1).kill();
    let timeout = Duration::from_secs(3);
    let linearizable = client.get("k").timeout(timeout).await.unwrap_err();
    assert!(
        matches!(
            linearizable.kind(),
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded
        ),
        "{linearizable:?}"
    );
    let found = client.get("k").serializable().await.unwrap();
    assert_eq!(found.first().unwrap().value, "v");
    let remaining = &client.connectivity()[2];
    assert_eq!(remaining.state, ConnectivityState::NoLeader);
}

#[tokio::test]
async fn random_faults_cost_no_read() {
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("read", "me").await.unwrap();
    let chaos = Chaos::from_env("failover");
    let writers = Writers::start(&client, 4, PREFIX);
    let readers = Readers::start(&client, 2, "read");
    let monitor = AvailabilityMonitor::start(&cluster);
    chaos.run(&cluster, &ChaosKind::ALL).await;
    client
        .put("the", "end")
        .timeout(Duration::from_secs(20))
        .await
        .unwrap();
    let writes = writers.finish().await;
    let failed_reads = readers.finish_timed().await;
    println!(
        "{} writes, longest gap {:?}, {:?}",
        writes.len(),
        longest_gap(&writes),
        error_counts(&writes)
    );
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    let availability = monitor.finish().await;
    check_reads(failed_reads, &availability);
}

#[tokio::test]
async fn five_members_serve_with_two_down() {
    let cluster = Cluster::start(5).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let writers = Writers::start(&client, 4, PREFIX);
    writers.wait_for_writes(20).await;
    let leader = cluster.leader().await;
    cluster.member(leader).kill();
    cluster.member((leader + 1) % 5).freeze();
    writers.wait_for_writes(200).await;
    cluster.member((leader + 1) % 5).thaw();
    cluster.member(leader).start().await;
    cluster.wait_healthy().await;
    let writes = writers.finish().await;
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
}
