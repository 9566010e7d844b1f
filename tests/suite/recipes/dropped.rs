//! Sessions, locks, elections, registrations and observers that are dropped without a word leave nothing behind.

use std::time::Duration;

use actix_etcd::{Client, test_faults::live_actors};
use testbed::Cluster;
use tokio::time::timeout;

use crate::{
    actor::requests::ear,
    support::wait::{until, until_async},
};

const LONG: Duration = Duration::from_secs(60);
const NAME: &str = "recipes::dropped::dropped_recipes_leave_no_key_no_lease_and_no_actor";

/// Other tests run beside this one and have actors of their own: it runs in a process of its own.
#[test]
fn dropped_recipes_leave_no_key_no_lease_and_no_actor() {
    if std::env::var_os("ALONE").is_none() {
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env("ALONE", "1")
            .status();
        assert!(alone.unwrap().success());
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
            assert!(timeout(LONG / 1200, mutex.lock()).await.is_err());
            let leader = a.election("e").campaign("a").await.unwrap();
            let mut leaders = etcd.leaders("e");
            leaders.next().await.unwrap();
            let lost = tokio::spawn(leader.lost());
            let registration = etcd.register("s", "here").ttl(LONG).await.unwrap();
            let mut instances = etcd.discover("s").await.unwrap();
            instances.next().await.unwrap();
            let (_, told) = ear();
            let observation = etcd.discover("s").deliver_to(told).await.unwrap();
            let (heard, waits) = ear();
            let claim = b.mutex("m").lock().deliver_to(waits);
            until("the claim is granted", || heard.lock().unwrap().len() == 1).await;
            drop((guard, leader, a, b, mutex));
            lost.await.unwrap();
            drop((registration, instances, observation, claim));
            drop((leaders, etcd));
        }
        until("every actor has ended", || live_actors() == 0).await;
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        until_async("every key is gone", async || {
            etcd.get("").prefix().await.unwrap().count == 0
        })
        .await;
        until_async("every lease is gone", async || {
            etcd.leases().await.unwrap().leases.is_empty()
        })
        .await;
    });
}
