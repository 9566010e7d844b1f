//! One endpoint in front of several members: an endpoint that leads to a bad member is dialled again.

use std::time::{Duration, Instant};

use actix_etcd::Client;
use testbed::{Chaos, ChaosKind, Cluster, Fault, TcpBalancer};
use tokio::task::JoinSet;

use crate::support::{
    quiet_window::ready_members,
    traffic::{Writers, check_applied_at_most_once, error_counts, longest_gap},
    wait::until,
};

/// Connects through a balancer whose first connection goes to this member. Later ones use all members in turn.
async fn connect_via(balancer: &TcpBalancer, member: usize) -> Client {
    balancer.script(&[member]);
    let etcd = Client::connect([balancer.endpoint()]).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(balancer.forwarded(member), 1);
    etcd
}

/// Starts puts at short intervals until one succeeds, and returns how long that took.
async fn served_again(etcd: &Client, failed_at: Instant) -> Duration {
    let mut puts = JoinSet::new();
    loop {
        puts.spawn(etcd.put("k", "v").into_future());
        let wait = tokio::time::sleep(Duration::from_millis(100));
        tokio::select! {
            Some(Ok(Ok(_))) = puts.join_next() => break,
            () = wait => {}
        }
        let elapsed = failed_at.elapsed();
        assert!(elapsed < Duration::from_secs(30), "no put succeeded");
    }
    let took = failed_at.elapsed();
    println!("served again after {took:?}");
    took
}

#[tokio::test]
async fn cut_off_backend_is_left() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    let follower = (cluster.leader().await + 1) % 3;
    let etcd = connect_via(&balancer, follower).await;
    cluster.isolate(follower);
    let took = served_again(&etcd, Instant::now()).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(balancer.link().accepted() >= 2);
}

#[tokio::test]
async fn cut_off_leader_backend_is_left() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    let leader = cluster.leader().await;
    let etcd = connect_via(&balancer, leader).await;
    cluster.isolate(leader);
    let took = served_again(&etcd, Instant::now()).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn silent_backend_is_left() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    let follower = (cluster.leader().await + 1) % 3;
    let etcd = connect_via(&balancer, follower).await;
    cluster.member(follower).client_link().set(Fault::Freeze);
    let took = served_again(&etcd, Instant::now()).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn learner_behind_first_connection_is_left() {
    let cluster = Cluster::start(3).await;
    let learner = cluster.add_learner().await;
    let balancer = TcpBalancer::over(&cluster);
    balancer.script(&[learner]);
    let etcd = Client::connect([balancer.endpoint()]).await.unwrap();
    assert_eq!(balancer.forwarded(learner), 1);
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn left_connection_is_closed() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    let follower = (cluster.leader().await + 1) % 3;
    let etcd = connect_via(&balancer, follower).await;
    cluster.isolate(follower);
    served_again(&etcd, Instant::now()).await;
    let link = cluster.member(follower).client_link().clone();
    until("the connection to the member is closed", || {
        link.connections() == 0
    })
    .await;
}

#[tokio::test]
async fn endpoint_of_one_member_is_dialled_rarely() {
    let cluster = Cluster::start(3).await;
    let isolated = cluster.member((cluster.leader().await + 1) % 3);
    let etcd = Client::connect([isolated.endpoint()]).await.unwrap();
    cluster.isolate(isolated.index());
    let put = tokio::spawn(etcd.put("k", "v").into_future());
    until("the member is avoided", || ready_members(&etcd) == 0).await;
    put.await.unwrap().unwrap_err();
    let dialled = isolated.client_link().accepted();
    let started = Instant::now();
    until("replacements were dialled", || {
        started.elapsed() > Duration::from_secs(5) && isolated.client_link().accepted() > dialled
    })
    .await;
    let dials = isolated.client_link().accepted() - dialled;
    // 0.1, 0.3, 0.7, 1.5, 3.1 and 6.3 s after the first sign, with jitter.
    assert!(dials <= 8, "{dials} connections in {:?}", started.elapsed());
    cluster.heal();
    until("the member is used again", || ready_members(&etcd) == 1).await;
}

#[tokio::test]
async fn random_faults_behind_balancer_apply_writes_once() {
    let cluster = Cluster::start(3).await;
    let balancer = TcpBalancer::over(&cluster);
    let etcd = Client::connect([balancer.endpoint()]).await.unwrap();
    let writers = Writers::start(&etcd, 4, "balanced/");
    Chaos::from_env("balancer")
        .run(&cluster, &ChaosKind::ALL)
        .await;
    let last = etcd.put("the", "end").timeout(Duration::from_secs(20));
    last.await.unwrap();
    let writes = writers.finish().await;
    println!(
        "{} writes, longest gap {:?}, {:?}",
        writes.len(),
        longest_gap(&writes),
        error_counts(&writes)
    );
    check_applied_at_most_once(&cluster, "balanced/", &writes).await;
}
