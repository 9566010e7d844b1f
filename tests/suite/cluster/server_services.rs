//! Server-side locks, server-side elections and the health service.

use std::time::Duration;

use actix_etcd::{ErrorKind, Outcome};
use serde_json::json;
use testbed::{Cluster, number};
use tokio::time::timeout;

use crate::support::connected_cluster::connect;

async fn grant_lease(cluster: &Cluster) -> i64 {
    let granted = cluster.api_any("/v3/lease/grant", json!({"TTL": 60})).await;
    number(&granted["ID"])
}

#[tokio::test]
async fn server_side_lock_waits_for_its_holder() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let (first, second) = (grant_lease(&cluster).await, grant_lease(&cluster).await);
    let held = etcd.server_locks().lock("door", first).await.unwrap();
    assert!(held.key.starts_with(b"door/"));
    let busy = etcd
        .server_locks()
        .lock("door", second)
        .timeout(Duration::from_millis(300))
        .await
        .unwrap_err();
    // The deadline passes at the server and at the client at the same time: either error may come first.
    assert_eq!(busy.outcome(), Outcome::Unknown, "{busy}");
    let waiting = tokio::spawn({
        let etcd = etcd.clone();
        async move { etcd.server_locks().lock("door", second).await }
    });
    etcd.server_locks().unlock(&held.key).await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_ne!(next.key, held.key);
}

#[tokio::test]
async fn server_side_election_is_won_observed_and_resigned() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let elections = etcd.server_elections();
    let no_leader = elections.leader("seat").await.unwrap_err();
    assert!(no_leader.to_string().contains("no leader"), "{no_leader}");
    assert_eq!(no_leader.kind(), ErrorKind::NoElectionLeader);
    let won = elections
        .campaign("seat", grant_lease(&cluster).await, "ann")
        .await
        .unwrap();
    let leader = elections.leader("seat").await.unwrap().kv.unwrap();
    assert_eq!(
        (leader.key, &leader.value[..]),
        (won.leader.key.clone(), &b"ann"[..])
    );
    let mut observed = elections.observe("seat").await.unwrap();
    let seen = observed.next().await.unwrap().unwrap().kv.unwrap();
    assert_eq!(seen.value, "ann");
    elections.proclaim(&won.leader, "queen ann").await.unwrap();
    let seen = observed.next().await.unwrap().unwrap().kv.unwrap();
    assert_eq!(seen.value, "queen ann");
    elections.resign(&won.leader).await.unwrap();
    let lost = elections.proclaim(&won.leader, "late").await.unwrap_err();
    let found = (lost.kind(), lost.outcome());
    assert_eq!(found, (ErrorKind::LockLost, Outcome::Rejected), "{lost}");
    let next = elections
        .campaign("seat", grant_lease(&cluster).await, "bob")
        .await
        .unwrap();
    assert!(next.leader.rev > won.leader.rev);
    let seen = observed.next().await.unwrap().unwrap().kv.unwrap();
    assert_eq!(seen.value, "bob");
}

#[tokio::test]
async fn health_is_watched_until_member_stops() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    assert!(etcd.health().check().await.unwrap().is_serving());
    let second = cluster.member(1).endpoint();
    assert!(
        etcd.health()
            .check()
            .at(&second)
            .await
            .unwrap()
            .is_serving()
    );
    let mut watched = etcd.health().watch(&second).await.unwrap();
    assert!(watched.next().await.unwrap().unwrap().is_serving());
    cluster.member(1).kill();
    let ended = timeout(Duration::from_secs(5), async {
        loop {
            match watched.next().await {
                Some(Ok(_)) => {}
                other => return other,
            }
        }
    });
    assert!(ended.await.unwrap().unwrap().is_err());
    assert!(watched.next().await.is_none());
}
