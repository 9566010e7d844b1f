//! Members die, freeze and are cut off under load: no write twice, no read lost.

use std::time::Duration;

use actix_etcd::{Client, Error, ErrorKind, Outcome, balancer::ConnectivityState};
use testbed::{Chaos, ChaosKind, Cluster, Fault, Member};

use crate::support::{
    cluster_availability::{Served, Witness},
    traffic::{Readers, Unread, Writers, check_applied_at_most_once, failures, longest_gap},
    wait::hold,
};

const PREFIX: &str = "failover/";

/// Runs writers and readers through a fault of each member in turn; gives what the writers were told went wrong.
async fn survive<B, R>(name: &str, begin: B, end: R) -> Vec<Error>
where
    B: AsyncFn(&Cluster, &Member),
    R: AsyncFn(&Cluster, &Member),
{
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("read", "me").await.unwrap();
    let mut failed = Vec::new();
    for member in cluster.members() {
        let leads = cluster.leader().await == member.index();
        let writers = Writers::start(&client, 4, &format!("{PREFIX}{}/", member.index()));
        let readers = Readers::start(&client, 2, "read");
        let witness = Witness::start(&cluster);
        writers.until_written(20).await;
        begin(&cluster, &member).await;
        hold(Duration::from_secs(3)).await;
        end(&cluster, &member).await;
        writers.until_written(20).await;
        let round = writers.finish().await;
        let unread = readers.finish_timed().await;
        println!(
            "{name}: member {} (leader: {leads}): longest gap {:?}, {} writes, {:?}",
            member.index(),
            longest_gap(&round),
            round.len(),
            failures(&round),
        );
        check_reads(unread, &witness.finish().await);
        check_applied_at_most_once(&cluster, &format!("{PREFIX}{}/", member.index()), &round).await;
        failed.extend(round.into_iter().filter_map(|write| write.result.err()));
        cluster.wait_healthy().await;
    }
    client.shutdown().await;
    failed
}

/// No read fails but where nobody could have read: an election takes as long as it takes.
fn check_reads(unread: Vec<Unread>, served: &Served) {
    for Unread { sent, ended, error } in unread {
        let longest = served.longest_between(sent, ended);
        assert!(
            longest < Duration::from_secs(2),
            "a read failed although the cluster served for {longest:?} while it waited: {error}"
        );
    }
}

fn assert_unknown(failed: &[Error]) {
    for error in failed {
        assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
    }
}

#[tokio::test]
async fn a_killed_member_costs_no_read_and_doubles_no_write() {
    survive(
        "kill",
        async |_, member| member.kill(),
        async |_, member| member.start().await,
    )
    .await;
}

#[tokio::test]
async fn a_member_that_stops_in_order_costs_no_read_and_no_write_but_what_is_unknown() {
    let failed = survive(
        "stop",
        async |_, member| member.stop().await,
        async |_, member| member.start().await,
    )
    .await;
    assert_unknown(&failed);
}

#[tokio::test]
async fn a_frozen_member_costs_no_read_and_doubles_no_write() {
    survive(
        "freeze",
        async |_, member| member.freeze(),
        async |_, member| member.thaw(),
    )
    .await;
}

#[tokio::test]
async fn a_frozen_link_costs_no_read_and_doubles_no_write() {
    survive(
        "frozen link",
        async |_, member| member.client_link().set(Fault::Freeze),
        async |_, member| member.client_link().heal(),
    )
    .await;
}

#[tokio::test]
async fn a_member_cut_off_from_its_peers_costs_no_read_and_doubles_no_write() {
    survive(
        "cut off",
        async |cluster, member| cluster.isolate(member.index()),
        async |cluster, _| cluster.heal(),
    )
    .await;
}

#[tokio::test]
async fn connections_that_are_reset_again_and_again_cost_no_read_and_no_write_but_what_is_unknown()
{
    let failed = survive(
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
    assert_unknown(&failed);
}

#[tokio::test]
async fn an_outage_of_all_members_ends_calls_by_deadline_or_as_unknown_only() {
    let cluster = Cluster::start(3).await;
    let client = Client::builder(cluster.endpoints())
        .request_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap();
    let writers = Writers::start(&client, 4, PREFIX);
    writers.until_written(20).await;
    for member in cluster.members() {
        member.kill();
    }
    hold(Duration::from_millis(2500)).await;
    cluster.start_all().await;
    writers.until_written(20).await;
    let writes = writers.finish().await;
    println!(
        "all down: longest gap {:?}, {:?}",
        longest_gap(&writes),
        failures(&writes)
    );
    for error in writes
        .iter()
        .filter_map(|write| write.result.as_ref().err())
    {
        let by_deadline = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded
        );
        assert!(
            by_deadline || error.outcome() == Outcome::Unknown,
            "{error:?}"
        );
    }
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
}

#[tokio::test]
async fn a_serializable_read_uses_a_member_without_leader() {
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("k", "v").await.unwrap();
    cluster.member(0).kill();
    cluster.member(1).kill();
    let short = Duration::from_secs(3);
    let linearizable = client.get("k").timeout(short).await.unwrap_err();
    assert!(
        matches!(
            linearizable.kind(),
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded
        ),
        "{linearizable:?}"
    );
    let found = client.get("k").serializable().await.unwrap();
    assert_eq!(found.first().unwrap().value, "v");
    let left = &client.connectivity()[2];
    assert_eq!(left.state, ConnectivityState::NoLeader);
}

#[tokio::test]
async fn random_faults_double_no_write_and_lose_no_read() {
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("read", "me").await.unwrap();
    let chaos = Chaos::from_env("failover");
    let writers = Writers::start(&client, 4, PREFIX);
    let readers = Readers::start(&client, 2, "read");
    let witness = Witness::start(&cluster);
    chaos.run(&cluster, &ChaosKind::ALL).await;
    client
        .put("the", "end")
        .timeout(Duration::from_secs(20))
        .await
        .unwrap();
    let writes = writers.finish().await;
    let unread = readers.finish_timed().await;
    println!(
        "{} writes, longest gap {:?}, {:?}",
        writes.len(),
        longest_gap(&writes),
        failures(&writes)
    );
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    let served = witness.finish().await;
    check_reads(unread, &served);
}

#[tokio::test]
async fn five_members_serve_with_two_of_them_gone() {
    let cluster = Cluster::start(5).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let writers = Writers::start(&client, 4, PREFIX);
    writers.until_written(20).await;
    let leader = cluster.leader().await;
    cluster.member(leader).kill();
    cluster.member((leader + 1) % 5).freeze();
    writers.until_written(200).await;
    cluster.member((leader + 1) % 5).thaw();
    cluster.member(leader).start().await;
    cluster.wait_healthy().await;
    let writes = writers.finish().await;
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
}
