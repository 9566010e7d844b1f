//! One of three members is slow: its messages to and from the other members are delayed. It has a leader and responds
//! to probes, so it is used like the others.

use std::time::{Duration, Instant};

use actix_etcd::Client;
use testbed::{Cluster, Fault, Member, TcpBalancer};

use crate::support::{auth_cluster::start_with_auth, quiet_window::ready_members, wait::until};

/// Delay of each message to and from the slow member.
const DELAY: Duration = Duration::from_millis(1500);
/// Limit for a call that needs one second at most, with slack for a busy machine.
const LIMIT: Duration = Duration::from_secs(2);
/// Number of calls of each kind. Some of them have to go to the slow member.
const CALLS: usize = 9;
const MAX_CALLS: usize = 100;

/// Delays the messages of one follower, and returns it.
async fn slow_down_follower(cluster: &Cluster) -> Member {
    let follower = (cluster.leader().await + 1) % cluster.len();
    cluster.isolate_with(follower, Fault::Delay(DELAY));
    cluster.member(follower)
}

/// Returns the number of calls of a method that the member has received.
async fn received(member: &Member, method: &str) -> f64 {
    let metric = format!(r#"grpc_server_started_total{{grpc_method="{method}"}}"#);
    member.metric(&metric).await.unwrap_or_default()
}

/// Makes calls and checks the time that each of them takes, until two of them have gone to the slow member. `call`
/// returns when it was sent.
async fn check_calls(slow: &Member, method: &str, mut call: impl AsyncFnMut() -> Instant) {
    let before = received(slow, method).await;
    for n in 0..MAX_CALLS {
        let elapsed = call().await.elapsed();
        println!("{method} {n}: {elapsed:?}");
        assert!(elapsed < LIMIT, "{method} {n}: {elapsed:?}");
        if n + 1 >= CALLS && received(slow, method).await >= before + 2.0 {
            return;
        }
    }
    panic!("no call went to the slow member");
}

#[tokio::test]
async fn every_connect_logs_in_despite_slow_member() {
    let builder = Cluster::builder().members(3).election(100, 5000);
    let cluster = start_with_auth(builder).await;
    let slow = slow_down_follower(&cluster).await;
    check_calls(&slow, "Authenticate", async || {
        let sent = Instant::now();
        let builder = Client::builder(cluster.endpoints()).credentials("root", "secret");
        builder.connect().await.unwrap();
        sent
    })
    .await;
}

#[tokio::test]
async fn leases_are_granted_and_revoked_despite_slow_member() {
    let builder = Cluster::builder().members(3).election(100, 5000);
    let cluster = builder.start().await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let slow = slow_down_follower(&cluster).await;
    let all_ready = async || until("all members are ready", || ready_members(&etcd) == 3).await;
    let ttl = Duration::from_secs(600);
    let mut granted = Vec::new();
    check_calls(&slow, "LeaseGrant", async || {
        all_ready().await;
        let sent = Instant::now();
        granted.push(etcd.lease(ttl).await.unwrap().id());
        sent
    })
    .await;
    // The list of the slow member is old.
    let leader = cluster.member(cluster.leader().await).endpoint();
    let leader = Client::connect([leader]).await.unwrap();
    let mut listed = leader.leases().await.unwrap().leases;
    listed.sort_unstable();
    granted.sort_unstable();
    assert_eq!(listed, granted, "one lease per call");
    check_calls(&slow, "LeaseRevoke", async || {
        all_ready().await;
        let lease = granted.pop().unwrap();
        let sent = Instant::now();
        etcd.revoke(lease).await.unwrap();
        sent
    })
    .await;
}

#[tokio::test]
async fn grant_leaves_slow_member_behind_balancer() {
    let builder = Cluster::builder().members(3).election(100, 5000);
    let cluster = builder.start().await;
    let slow = slow_down_follower(&cluster).await;
    let balancer = TcpBalancer::over(&cluster);
    balancer.forward_to(&[slow.index()]);
    let etcd = Client::connect([balancer.endpoint()]).await.unwrap();
    balancer.forward_to(&[cluster.leader().await]);
    let sent = Instant::now();
    let _lease = etcd.lease(Duration::from_secs(600)).await.unwrap();
    let elapsed = sent.elapsed();
    println!("grant: {elapsed:?}");
    // The slow member alone would need two messages to and from the leader.
    assert!(elapsed < DELAY * 2, "{elapsed:?}");
    assert!(received(&slow, "LeaseGrant").await >= 1.0);
}
