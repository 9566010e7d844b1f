//! Faults of the links between peers affect only these peers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::{Cluster, Direction, Fault, encode, number};

async fn wait_until(event: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        let waited = started.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "{event} did not happen in time"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn put(key: &str) -> Value {
    json!({"key": encode(key), "value": encode("v")})
}

/// Starts three members with a long election timeout, so that a busy machine causes no election.
async fn start_cluster() -> Cluster {
    let builder = Cluster::builder().members(3).election(100, 3000);
    builder.start().await
}

/// Writes a key and returns the duration of the write. Retries a write that failed during an election.
async fn write(cluster: &Cluster, member: usize, key: &str) -> Duration {
    for _ in 0..5 {
        let started = Instant::now();
        match cluster.api(member, "/v3/kv/put", put(key)).await {
            Ok(_) => return started.elapsed(),
            Err(error) => println!("write of {key} failed: {error}"),
        }
    }
    panic!("every write of {key} failed");
}

/// Returns whether a member has the key in its own store.
async fn has_key(cluster: &Cluster, member: usize, key: &str) -> bool {
    let range = json!({"key": encode(key), "serializable": true});
    let found = cluster.api(member, "/v3/kv/range", range).await.unwrap();
    number::<u64>(&found["count"]) == 1
}

async fn has_leader(cluster: &Cluster, member: usize) -> bool {
    let status = cluster.api(member, "/v3/maintenance/status", json!({}));
    number::<u64>(&status.await.unwrap()["leader"]) != 0
}

#[tokio::test]
async fn refuse_and_reset_cut_off_peer() {
    for fault in [Fault::Refuse, Fault::Reset] {
        let cluster = start_cluster().await;
        let leader = cluster.leader().await;
        let (isolated, other) = ((leader + 1) % 3, (leader + 2) % 3);
        cluster.isolate_with(isolated, fault);
        let links = [(leader, isolated), (isolated, leader), (isolated, other)];
        let links = links.map(|(from, to)| cluster.peer_link(from, to));
        let accepted_before = links[0].accepted();
        wait_until("the loss of the leader", async || {
            !has_leader(&cluster, isolated).await
        })
        .await;
        // The peers keep dialling without success.
        wait_until("another dial", async || {
            links[0].accepted() > accepted_before + 3
        })
        .await;
        let bytes = |direction| links.iter().map(|link| link.bytes(direction)).sum::<u64>();
        let before = (bytes(Direction::ToServer), bytes(Direction::ToClient));
        write(&cluster, leader, "k").await;
        wait_until("the write on the leader", async || {
            has_key(&cluster, leader, "k").await
        })
        .await;
        assert!(!has_key(&cluster, isolated, "k").await, "{fault:?}");
        let after = (bytes(Direction::ToServer), bytes(Direction::ToClient));
        assert_eq!(before, after, "{fault:?}");
        assert!(cluster.peer_link(other, leader).connections() > 0);
        cluster.heal();
        wait_until("the catch-up", async || {
            has_key(&cluster, isolated, "k").await
        })
        .await;
        cluster.wait_healthy().await;
    }
}

#[tokio::test]
async fn write_waits_for_delay_both_ways() {
    let cluster = start_cluster().await;
    let delay = Duration::from_millis(150);
    for member in 0..3 {
        cluster.isolate_with(member, Fault::Delay(delay));
    }
    let leader = cluster.leader().await;
    // The entry to a follower and its acknowledgement are both delayed.
    let took = write(&cluster, leader, "k").await;
    assert!(took >= 2 * delay, "{took:?}");
    cluster.heal();
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn half_open_member_receives_but_cannot_send() {
    let cluster = start_cluster().await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    // A member sends over the connection that the receiver dialled.
    let outgoing = cluster.peer_link(leader, follower);
    let incoming = cluster.peer_link(follower, leader);
    outgoing.set(Fault::HalfOpen(Direction::ToClient));
    let writer = cluster.clone();
    let blocked_put =
        tokio::spawn(async move { writer.api(follower, "/v3/kv/put", put("blocked")).await });
    write(&cluster, leader, "replicated").await;
    wait_until("the replication of a write", async || {
        has_key(&cluster, follower, "replicated").await
    })
    .await;
    wait_until("finding the leader", async || {
        has_leader(&cluster, follower).await
    })
    .await;
    assert!(!blocked_put.is_finished());
    outgoing.heal();
    // The bytes were held, not lost; but etcd may have timed out the put.
    let _ = blocked_put.await.unwrap();
    wait_until("a successful put on the follower", async || {
        let put = cluster.api(follower, "/v3/kv/put", put("unblocked"));
        put.await.is_ok()
    })
    .await;

    cluster.wait_healthy().await;
    incoming.set(Fault::HalfOpen(Direction::ToClient));
    wait_until("the loss of the unreachable leader", async || {
        !has_leader(&cluster, follower).await
    })
    .await;
    cluster.heal();
    cluster.wait_healthy().await;
}
