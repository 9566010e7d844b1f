//! Locks and elections with a session of their own, which replaces a lost lease.

use std::time::Duration;

use actix_etcd::{Client, lease::LeaseLost, recipes::mutex::OwnershipLost};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    connected_cluster::StartWithClient,
    wait::{TEST_TIMEOUT, until_async},
};

const TTL: Duration = Duration::from_secs(2);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

async fn key_count(etcd: &Client, prefix: &str) -> i64 {
    etcd.get(prefix).prefix().await.unwrap().count
}

async fn until_keys(etcd: &Client, prefix: &str, count: i64) {
    until_async(&format!("{count} keys are under {prefix}"), async || {
        key_count(etcd, prefix).await == count
    })
    .await;
}

#[tokio::test]
async fn client_mutex_locks_again_after_outage() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let mutex = etcd.mutex("l").ttl(TTL).await.unwrap();
    let guard = mutex.lock().await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    timeout(TEST_TIMEOUT, guard.lost()).await.unwrap();
    until_keys(&direct, "l/", 0).await;
    let lost = guard.lease();
    drop(guard);
    cluster.heal();
    let guard = mutex.lock_within(TEST_TIMEOUT).await.unwrap();
    assert_ne!(guard.lease(), lost);
    assert!(guard.txn().await.unwrap().succeeded);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn waiting_requests_continue_with_new_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let holder = etcd.session(LONG).await.unwrap();
    let held = holder.mutex("x").lock().await.unwrap();
    let mutex = etcd.mutex("x").ttl(TTL).await.unwrap();
    let election = etcd.election("e").ttl(TTL).await.unwrap();
    let leader = holder.election("e").campaign("a").await.unwrap();
    let lock = tokio::spawn(async move { mutex.lock().await });
    let campaign = tokio::spawn(async move { election.campaign("b").await });
    until_keys(&etcd, "x/", 2).await;
    until_keys(&etcd, "e/", 2).await;
    let own = holder.lease().unwrap();
    for prefix in ["x/", "e/"] {
        let found = etcd.get(prefix).prefix().await.unwrap();
        let waiting = found.kvs.iter().find(|kv| kv.lease != own).unwrap();
        etcd.revoke(waiting.lease).await.unwrap();
    }
    until_keys(&etcd, "x/", 2).await;
    until_keys(&etcd, "e/", 2).await;
    held.unlock().await.unwrap();
    leader.resign().await.unwrap();
    let guard = timeout(TEST_TIMEOUT, lock).await.unwrap().unwrap().unwrap();
    let leadership = timeout(TEST_TIMEOUT, campaign).await.unwrap().unwrap();
    assert!(guard.is_certain() && leadership.unwrap().is_certain());
}

#[tokio::test]
async fn dropped_session_ends_waiters_while_healing() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(TTL).heal().await.unwrap();
    let guard = session.mutex("l").lock().await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    timeout(TEST_TIMEOUT, guard.lost()).await.unwrap();
    let mutex = session.mutex("l");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    drop((session, guard));
    let ended = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert!(ended.is_err());
}

#[tokio::test]
async fn guard_keeps_session_of_dropped_mutex() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let guard = etcd.mutex("l").await.unwrap().lock().await.unwrap();
    let election = etcd.election("e").await.unwrap();
    let leadership = election.campaign("v").await.unwrap();
    drop(election);
    assert!(guard.txn().await.unwrap().succeeded);
    assert!(leadership.txn().await.unwrap().succeeded);
    let lost = guard.lost();
    let lease = guard.lease();
    drop(guard);
    assert_eq!(
        timeout(TEST_TIMEOUT, lost).await.unwrap(),
        OwnershipLost::Closed
    );
    until_async("the lease is revoked", async || {
        etcd.time_to_live(lease).await.unwrap().remaining.is_none()
    })
    .await;
    etcd.clone().shutdown().await;
    assert_eq!(
        leadership.lost().await,
        OwnershipLost::Session(LeaseLost::Shutdown)
    );
}
