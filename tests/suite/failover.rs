//! Members die, freeze and are cut off under load: no write twice, no read lost.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Cluster, Fault, Member};

use crate::traffic::{Readers, Writers, check_applied_at_most_once, failures, longest_gap};

const PREFIX: &str = "failover/";

/// Runs writers and readers through a fault of each member in turn.
async fn survive<B, R>(name: &str, begin: B, end: R)
where
    B: AsyncFn(&Cluster, &Member),
    R: AsyncFn(&Cluster, &Member),
{
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    client.put("read", "me").await.unwrap();
    let mut writes = Vec::new();
    for member in cluster.members() {
        let leads = cluster.leader().await == member.index();
        let writers = Writers::start(&client, 4, &format!("{PREFIX}{}/", member.index()));
        let readers = Readers::start(&client, 2, "read");
        tokio::time::sleep(Duration::from_millis(300)).await;
        begin(&cluster, &member).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        end(&cluster, &member).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let round = writers.finish().await;
        let unread = readers.finish().await;
        println!(
            "{name}: member {} (leader: {leads}): longest gap {:?}, {} writes, {:?}",
            member.index(),
            longest_gap(&round),
            round.len(),
            failures(&round),
        );
        assert!(unread.is_empty(), "a read failed: {}", unread[0]);
        check_applied_at_most_once(&cluster, &format!("{PREFIX}{}/", member.index()), &round).await;
        writes.extend(round);
        cluster.wait_healthy().await;
    }
    client.shutdown().await;
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
