//! The faults of the links between peers do what they say, to these peers and to nobody else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::{Cluster, Direction, Fault, encode, number};

async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(60), "{what} never happened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn put(key: &str) -> Value {
    json!({"key": encode(key), "value": encode("v")})
}

/// Three members that do not take a busy machine for a dead leader.
async fn three() -> Cluster {
    let builder = Cluster::builder().members(3).election(100, 3000);
    builder.start().await
}

/// Writes a key, and tells how long it took: again where an election cost the write nevertheless.
async fn write(cluster: &Cluster, member: usize, key: &str) -> Duration {
    for _ in 0..5 {
        let started = Instant::now();
        match cluster.api(member, "/v3/kv/put", put(key)).await {
            Ok(_) => return started.elapsed(),
            Err(error) => println!("{key} was not written: {error}"),
        }
    }
    panic!("{key} cannot be written");
}

/// Whether a member has the key, as far as it knows itself.
async fn has(cluster: &Cluster, member: usize, key: &str) -> bool {
    let range = json!({"key": encode(key), "serializable": true});
    let found = cluster.api(member, "/v3/kv/range", range).await.unwrap();
    number::<u64>(&found["count"]) == 1
}

async fn follows(cluster: &Cluster, member: usize) -> bool {
    let status = cluster.api(member, "/v3/maintenance/status", json!({}));
    number::<u64>(&status.await.unwrap()["leader"]) != 0
}

#[tokio::test]
async fn refuse_and_reset_end_what_is_open_and_let_nothing_new_through() {
    for fault in [Fault::Refuse, Fault::Reset] {
        let cluster = three().await;
        let leader = cluster.leader().await;
        let (cut_off, other) = ((leader + 1) % 3, (leader + 2) % 3);
        cluster.isolate_with(cut_off, fault);
        let links = [(leader, cut_off), (cut_off, leader), (cut_off, other)];
        let links = links.map(|(from, to)| cluster.peer_link(from, to));
        let dialled = links[0].accepted();
        eventually("losing the leader", async || {
            !follows(&cluster, cut_off).await
        })
        .await;
        // They are tried again and again, and each time in vain.
        eventually("dialling again", async || links[0].accepted() > dialled + 3).await;
        let moved = |direction| links.iter().map(|link| link.bytes(direction)).sum::<u64>();
        let before = (moved(Direction::ToServer), moved(Direction::ToClient));
        write(&cluster, leader, "k").await;
        eventually("having it", async || has(&cluster, leader, "k").await).await;
        assert!(!has(&cluster, cut_off, "k").await, "{fault:?}");
        let after = (moved(Direction::ToServer), moved(Direction::ToClient));
        assert_eq!(before, after, "{fault:?}");
        assert!(cluster.peer_link(other, leader).connections() > 0);
        cluster.heal();
        eventually("catching up", async || has(&cluster, cut_off, "k").await).await;
        cluster.wait_healthy().await;
    }
}

#[tokio::test]
async fn delay_is_what_a_write_waits_for_at_the_least() {
    let cluster = three().await;
    let delay = Duration::from_millis(150);
    for member in 0..3 {
        cluster.isolate_with(member, Fault::Delay(delay));
    }
    let leader = cluster.leader().await;
    // The entry to a follower, and its consent back.
    let took = write(&cluster, leader, "k").await;
    assert!(took >= 2 * delay, "{took:?}");
    cluster.heal();
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn half_open_lets_a_member_hear_and_not_be_heard() {
    let cluster = three().await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    // What a member says goes over the connection that was dialled to it.
    let says = cluster.peer_link(leader, follower);
    let hears = cluster.peer_link(follower, leader);
    says.set(Fault::HalfOpen(Direction::ToClient));
    let silent = cluster.clone();
    let unheard =
        tokio::spawn(async move { silent.api(follower, "/v3/kv/put", put("unheard")).await });
    write(&cluster, leader, "heard").await;
    eventually("hearing of a write", async || {
        has(&cluster, follower, "heard").await
    })
    .await;
    eventually("following the leader", async || {
        follows(&cluster, follower).await
    })
    .await;
    assert!(!unheard.is_finished());
    says.heal();
    // What it said was held, not lost; should it have taken long, etcd itself has given up.
    let _ = unheard.await.unwrap();
    eventually("being heard", async || {
        let put = cluster.api(follower, "/v3/kv/put", put("heard again"));
        put.await.is_ok()
    })
    .await;

    cluster.wait_healthy().await;
    hears.set(Fault::HalfOpen(Direction::ToClient));
    eventually("losing a leader it cannot hear", async || {
        !follows(&cluster, follower).await
    })
    .await;
    cluster.heal();
    cluster.wait_healthy().await;
}
