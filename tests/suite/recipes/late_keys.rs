//! Keys that arrive late: a frozen member keeps requests in its socket and applies them when it continues.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client,
    watch::{Watch, WatchEvent},
};
use testbed::Cluster;
use tokio::task::JoinSet;

use crate::support::wait::{hold, until_async};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(120);
/// Longer than any time limit within which a client could expect a late request to arrive.
const FREEZE: Duration = Duration::from_secs(20);
/// Enough names that some requests are sent to the frozen member.
const NAMES: usize = 96;

fn name(number: usize) -> String {
    format!("late/{number}")
}

/// Three members, the last one a follower, and a client of the other two.
async fn cluster_with_follower() -> (Cluster, Client, Client) {
    let cluster = Cluster::start(3).await;
    cluster.move_leader(0).await;
    // Not through another path, which could avoid the frozen member.
    let etcd = Client::connect(cluster.member_endpoints()).await.unwrap();
    let others = &cluster.direct_endpoints()[..2];
    let observer = Client::connect(others).await.unwrap();
    (cluster, etcd, observer)
}

/// Returns how long each key existed that is put before the key `end`.
async fn late_key_lifetimes(mut watch: Watch) -> Vec<Option<Duration>> {
    let mut lifetimes = Vec::new();
    let mut existing = HashMap::new();
    while let Some(item) = watch.next().await {
        let WatchEvent::Events(events) = item else {
            continue;
        };
        for event in &*events {
            let key = event.kv.as_ref().unwrap().key.clone();
            if key == "end" {
                lifetimes.extend(existing.values().map(|_| None));
                return lifetimes;
            }
            if event.is_put() {
                existing.insert(key, Instant::now());
            } else if let Some(created) = existing.remove(&key) {
                lifetimes.push(Some(created.elapsed()));
            }
        }
    }
    panic!("the watch ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_keys_are_deleted_after_long_freeze() {
    let (cluster, etcd, observer) = cluster_with_follower().await;
    let session = Arc::new(etcd.session(LONG).await.unwrap());
    cluster.member(2).freeze();
    let frozen = Instant::now();
    let mut locks = JoinSet::new();
    for number in 0..NAMES {
        let session = session.clone();
        locks.spawn(async move {
            let name = name(number);
            match number % 5 {
                0 => {
                    let guard = session.mutex(name).lock().await.unwrap();
                    guard.unlock().await.unwrap();
                }
                1 => {
                    let leadership = session.election(name).campaign("v").await.unwrap();
                    leadership.resign().await.unwrap();
                }
                2 => {
                    let guard = session.rw_lock(name).read().await.unwrap();
                    guard.unlock().await.unwrap();
                }
                3 => {
                    let guard = session.rw_lock(name).write().await.unwrap();
                    guard.unlock().await.unwrap();
                }
                _ => {
                    let permit = session.semaphore(name, 2).acquire().await.unwrap();
                    permit.release().await.unwrap();
                }
            }
        });
    }
    locks.join_all().await;
    until_async("all locks are released", async || {
        observer.get("late/").prefix().await.unwrap().count == 0
    })
    .await;
    let watch = observer.watch("").prefix().await.unwrap();
    let lifetimes = tokio::spawn(late_key_lifetimes(watch));
    hold(FREEZE.saturating_sub(frozen.elapsed())).await;
    cluster.member(2).thaw();
    // The requests arrive, and their keys are deleted.
    hold(3 * SECOND).await;
    observer.put("end", "").await.unwrap();
    let lifetimes = lifetimes.await.unwrap();
    println!("late keys existed for {lifetimes:?}");
    assert!(!lifetimes.is_empty(), "no request arrived late");
    let other = observer.session(LONG).await.unwrap();
    for number in 0..NAMES {
        let locked = other.mutex(name(number)).lock_within(5 * SECOND).await;
        drop(locked.unwrap_or_else(|error| panic!("{}: {error}", name(number))));
    }
    let within_limit = |lifetime: &Option<Duration>| lifetime.is_some_and(|time| time < SECOND);
    assert!(lifetimes.iter().all(within_limit), "{lifetimes:?}");
}
