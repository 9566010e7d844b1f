//! Crashes of actors: they are restarted, and no call fails.

use actix_etcd::{Client, test_faults};
use testbed::Cluster;

use crate::support::{
    quiet_window::without_election,
    traffic::{Readers, Writers, check_applied_at_most_once, error_counts},
};

/// Crashes actors of every kind repeatedly under load, and returns the errors of all calls.
async fn crash_under_load(cluster: &Cluster) -> Vec<String> {
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    // Each window has its own prefix.
    let prefix = format!("crash/{}/", cluster.term().await);
    let writers = Writers::start(&etcd, 4, &prefix);
    let readers = Readers::start(&etcd, 2, &format!("{prefix}0"));
    let endpoints = cluster.endpoints();
    let mut errors = Vec::new();
    for round in 0..30 {
        test_faults::crash_balancer(&etcd);
        test_faults::crash_retry(&etcd);
        test_faults::crash_connection(&etcd, &endpoints[round % 3]).unwrap();
        let put = etcd.put("between", "crashes").await;
        errors.extend(put.err().map(|error| error.to_string()));
    }
    let writes = writers.finish().await;
    let read_errors = readers.finish().await;
    errors.extend(read_errors.iter().map(ToString::to_string));
    errors.extend(error_counts(&writes).into_keys());
    check_applied_at_most_once(cluster, &prefix, &writes).await;
    errors
}

#[tokio::test]
async fn actor_crashes_under_load_cost_no_call() {
    let cluster = Cluster::start(3).await;
    // Writes may fail during an election, even without a crash.
    let errors = without_election(&cluster, async || crash_under_load(&cluster).await).await;
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test]
async fn reconnect_survives_connection_actor_crash() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    for _ in 0..5 {
        cluster.member(0).client_link().reset_now();
        test_faults::crash_connection(&etcd, &cluster.endpoints()[0]).unwrap();
        test_faults::crash_balancer(&etcd);
        etcd.get("k").await.unwrap();
    }
}
