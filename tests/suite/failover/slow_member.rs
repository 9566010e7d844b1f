//! One of three members is slow: its messages to and from the other members are delayed. It has a leader and responds to
//! probes, so it is used like the others.

use std::time::{Duration, Instant};

use actix_etcd::Client;
use testbed::{Cluster, Fault};

use crate::support::{auth_cluster::start_with_auth, quiet_window::ready_members, wait::until};

/// Delay of each message to and from the slow member.
const DELAY: Duration = Duration::from_millis(1500);
/// Limit for a call that needs one second at most, with slack for a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

/// Delays the messages of one follower.
async fn slow_down_follower(cluster: &Cluster) {
    let follower = (cluster.leader().await + 1) % cluster.len();
    cluster.isolate_with(follower, Fault::Delay(DELAY));
}

#[tokio::test]
async fn every_connect_logs_in_despite_slow_member() {
    let builder = Cluster::builder().members(3).election(100, 5000);
    let cluster = start_with_auth(builder).await;
    slow_down_follower(&cluster).await;
    for n in 0..9 {
        let started = Instant::now();
        let builder = Client::builder(cluster.endpoints()).credentials("root", "secret");
        let connected = builder.connect().await;
        let elapsed = started.elapsed();
        println!("connect {n}: {elapsed:?}");
        connected.unwrap().shutdown().await;
        assert!(elapsed < LIMIT, "connect {n}: {elapsed:?}");
    }
}

#[tokio::test]
async fn every_grant_and_revoke_succeeds_despite_slow_member() {
    let builder = Cluster::builder().members(3).election(100, 5000);
    let cluster = builder.start().await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    until("all members are ready", || ready_members(&etcd) == 3).await;
    slow_down_follower(&cluster).await;
    for n in 0..9 {
        let started = Instant::now();
        let lease = etcd.lease(Duration::from_secs(60)).await.unwrap();
        let granted = started.elapsed();
        let id = lease.id();
        let started = Instant::now();
        etcd.revoke(id).await.unwrap();
        let revoked = started.elapsed();
        println!("grant {n}: {granted:?}, revoke {revoked:?}");
        assert!(granted < LIMIT, "grant {n}: {granted:?}");
        assert!(revoked < LIMIT, "revoke {n}: {revoked:?}");
    }
    cluster.heal();
    let left = etcd.leases().await.unwrap();
    println!("{} leases are left", left.leases.len());
}
