//! A crash of any actor is contained and healed.

use actix_etcd::{Client, testing};
use testbed::Cluster;

use crate::traffic::{Readers, Writers, check_applied_at_most_once, failures};

#[tokio::test]
async fn crashing_actors_under_load_cost_no_call() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let writers = Writers::start(&etcd, 4, "crash/");
    let readers = Readers::start(&etcd, 2, "crash/0");
    let endpoints = cluster.endpoints();
    for round in 0..30 {
        testing::crash_balancer(&etcd);
        testing::crash_retry(&etcd);
        testing::crash_connection(&etcd, &endpoints[round % 3]).unwrap();
        etcd.put("between", "crashes").await.unwrap();
    }
    let writes = writers.finish().await;
    assert!(readers.finish().await.is_empty());
    assert!(failures(&writes).is_empty(), "{:?}", failures(&writes));
    check_applied_at_most_once(&cluster, "crash/", &writes).await;
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
