//! A crash of any actor is contained and healed.

use actix_etcd::{Client, testing};
use testbed::Cluster;

use crate::support::{
    quiet_window::without_election,
    traffic::{Readers, Writers, check_applied_at_most_once, error_counts},
};

/// Crashes every kind of actor again and again under load, and tells what went wrong.
async fn crash_under_load(cluster: &Cluster) -> Vec<String> {
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    // Another one for every window.
    let prefix = format!("crash/{}/", cluster.term().await);
    let writers = Writers::start(&etcd, 4, &prefix);
    let readers = Readers::start(&etcd, 2, &format!("{prefix}0"));
    let endpoints = cluster.endpoints();
    let mut failed = Vec::new();
    for round in 0..30 {
        testing::crash_balancer(&etcd);
        testing::crash_retry(&etcd);
        testing::crash_connection(&etcd, &endpoints[round % 3]).unwrap();
        let between = etcd.put("between", "crashes").await;
        failed.extend(between.err().map(|error| error.to_string()));
    }
    let writes = writers.finish().await;
    let unread = readers.finish().await;
    failed.extend(unread.iter().map(ToString::to_string));
    failed.extend(error_counts(&writes).into_keys());
    check_applied_at_most_once(cluster, &prefix, &writes).await;
    failed
}

#[tokio::test]
async fn crashing_actors_under_load_cost_no_call() {
    let cluster = Cluster::start(3).await;
    // An election costs writes, whoever crashes.
    let failed = without_election(&cluster, async || crash_under_load(&cluster).await).await;
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test]
async fn a_connection_is_made_again_although_its_actor_crashes_on_the_way() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    for _ in 0..5 {
        cluster.member(0).client_link().reset_now();
        testing::crash_connection(&etcd, &cluster.endpoints()[0]).unwrap();
        testing::crash_balancer(&etcd);
        etcd.get("k").await.unwrap();
    }
}
