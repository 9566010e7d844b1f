//! Dropped sessions, locks, leaderships, registrations and subscriptions leave nothing behind.

use std::time::Duration;

use actix::{Actor, Context};
use actix_etcd::{Client, test_faults::live_actors};
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::{
    message_recorder::record_messages,
    process_isolation::in_own_process,
    wait::{TEST_TIMEOUT, until, until_async},
};

/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn dropped_handles_leave_no_key_lease_or_actor() {
    // Counts all actors of the process.
    if !in_own_process!() {
        return;
    }
    actix_rt::System::new().block_on(async {
        let cluster = Cluster::start(1).await;
        for _ in 0..5 {
            let etcd = Client::connect(cluster.endpoints()).await.unwrap();
            let (a, b) = (
                etcd.session(LONG).await.unwrap(),
                etcd.session(LONG).await.unwrap(),
            );
            let guard = a.mutex("l").lock().await.unwrap();
            let mutex = b.mutex("l");
            assert!(
                timeout(Duration::from_millis(50), mutex.lock())
                    .await
                    .is_err()
            );
            let reader = a.rw_lock("r").read().await.unwrap();
            let lock = b.rw_lock("r");
            let waiting = timeout(Duration::from_millis(50), lock.write());
            assert!(waiting.await.is_err());
            let permits = etcd.semaphore("p", 1).await.unwrap();
            let permit = permits.acquire().await.unwrap();
            let inside = b.double_barrier("d", 1).enter().await.unwrap();
            let barrier = a.barrier("b");
            assert!(barrier.hold().await.unwrap().is_new());
            let (_, recipient) = record_messages();
            let release = barrier.wait().deliver_to(recipient);
            let leader = a.election("e").campaign("a").await.unwrap();
            let mut leaders = etcd.leaders("e");
            leaders.next().await.unwrap();
            let lost = tokio::spawn(leader.lost());
            let registration = etcd.register("s", "here").ttl(LONG).await.unwrap();
            let mut instances = etcd.discover("s").await.unwrap();
            instances.next().await.unwrap();
            let (_, recipient) = record_messages();
            let observation = etcd.discover("s").deliver_to(recipient).await.unwrap();
            let (lock_events, recipient) = record_messages();
            let claim = b.mutex("m").lock().deliver_to(recipient);
            until("the lock is acquired", || {
                lock_events.lock().unwrap().len() == 1
            })
            .await;
            inside.leave().await.unwrap();
            drop((reader, lock, permits, permit, barrier, release));
            drop((guard, leader, a, b, mutex));
            lost.await.unwrap();
            drop((registration, instances, observation, claim));
            drop((leaders, etcd));
        }
        until("all actors have stopped", || live_actors() == 0).await;
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        until_async("all keys are deleted", async || {
            etcd.get("").prefix().await.unwrap().count == 0
        })
        .await;
        until_async("all leases are revoked", async || {
            etcd.leases().await.unwrap().leases.is_empty()
        })
        .await;
    });
}

#[actix::test]
async fn dropped_claim_of_blocked_actor_releases_lock() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.endpoints()).drop_grace(LONG);
    let etcd = builder.connect().await.unwrap();
    let mutex = etcd.mutex("l").ttl(LONG).await.unwrap();
    let (events, recipient) = record_messages();
    let claim = mutex.lock().deliver_to(recipient);
    until("the lock is acquired", || events.lock().unwrap().len() == 1).await;
    drop((mutex, etcd));
    // The last handle blocks this thread, so the actor cannot handle the end of its lock.
    drop(claim);
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mutex = etcd.mutex("l").await.unwrap();
    let guard = timeout(TEST_TIMEOUT, mutex.lock().into_future()).await;
    guard.unwrap().unwrap().unlock().await.unwrap();
}

struct Idle;

impl Actor for Idle {
    type Context = Context<Self>;
}

#[tokio::test]
async fn singleton_of_ended_system_blocks_only_for_release() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.endpoints()).drop_grace(LONG);
    let system = tokio::task::spawn_blocking(|| {
        let system = actix_rt::System::new();
        system.block_on(async {
            let etcd = builder.connect().await.unwrap();
            let singleton = etcd.singleton("only").ttl(LONG).margin(LONG / 2);
            let singleton = singleton.start(|_| Idle).unwrap();
            singleton.running().await.unwrap();
        });
        // The actor still runs, and ends with its system.
    });
    timeout(TEST_TIMEOUT, system).await.unwrap().unwrap();
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    assert!(etcd.leases().await.unwrap().leases.is_empty());
}
