//! Real clusters start, fail as told and leave nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Cluster, Direction, encode, number};

async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{what} never happened"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_cluster_of_three_serves_on_every_member() {
    let started = Instant::now();
    let cluster = Cluster::start(3).await;
    println!("healthy after {:?}", started.elapsed());
    assert_eq!(cluster.endpoints().len(), 3);
    let put = json!({"key": encode("k"), "value": encode("v")});
    cluster.api(0, "/v3/kv/put", put).await.unwrap();
    for index in 0..3 {
        let range = cluster
            .api(index, "/v3/kv/range", json!({"key": encode("k")}))
            .await
            .unwrap();
        assert_eq!(number::<u64>(&range["count"]), 1, "on member {index}");
        assert_ne!(cluster.member(index).id(), 0);
        for other in (0..3).filter(|other| *other != index) {
            let link = cluster.peer_link(index, other);
            assert!(link.connections() > 0, "{} carries nothing", link.name());
        }
    }
}

#[tokio::test]
async fn every_version_starts() {
    for version in testbed::VERSIONS {
        let cluster = Cluster::builder().members(1).version(version).start().await;
        let status = cluster
            .api(0, "/v3/maintenance/status", json!({}))
            .await
            .unwrap();
        let says = status["version"].as_str().unwrap();
        assert!(says.starts_with(version), "asked for {version}, got {says}");
    }
}

#[tokio::test]
async fn a_member_cut_off_loses_its_leader_but_still_answers_its_clients() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.isolate(follower);
    let lost = || async {
        let status = cluster
            .api(follower, "/v3/maintenance/status", json!({}))
            .await
            .unwrap();
        number::<u64>(&status["leader"]) == 0
    };
    eventually("losing the leader", lost).await;
    assert!(
        cluster
            .member(follower)
            .metric("etcd_server_has_leader")
            .await
            == Some(0.0)
    );
    assert_eq!(cluster.leader().await, leader, "the others keep theirs");
    cluster.heal();
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn a_link_between_peers_carries_what_its_own_member_dialled() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    // etcd sends entries to a follower over the connection that the follower dialled.
    let dialled = cluster.peer_link(follower, leader);
    let other = cluster.peer_link(leader, follower);
    let before = (
        dialled.bytes(Direction::ToClient),
        other.bytes(Direction::ToServer),
    );
    let put = json!({"key": encode("k"), "value": encode(vec![b'v'; 500_000])});
    cluster.api(leader, "/v3/kv/put", put).await.unwrap();
    // The other follower may have been the first.
    let arrived = async || dialled.bytes(Direction::ToClient) - before.0 >= 500_000;
    eventually("sending the entry", arrived).await;
    assert!(other.bytes(Direction::ToServer) - before.1 < 100_000);
}

#[tokio::test]
async fn a_leader_cut_off_is_replaced() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    cluster.isolate(leader);
    eventually("another leader", || async {
        cluster.leader().await != leader
    })
    .await;
    cluster.heal();
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn a_killed_member_comes_back_with_its_data() {
    let cluster = Cluster::start(1).await;
    let put = json!({"key": encode("k"), "value": encode("v")});
    cluster.api(0, "/v3/kv/put", put).await.unwrap();
    let member = cluster.member(0);
    member.kill();
    assert!(!member.is_running());
    let port = member
        .endpoint()
        .rsplit(':')
        .next()
        .unwrap()
        .parse::<u16>()
        .unwrap();
    let refused = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    cluster.start_all().await;
    let range = cluster
        .api(0, "/v3/kv/range", json!({"key": encode("k")}))
        .await
        .unwrap();
    assert_eq!(number::<u64>(&range["count"]), 1);
    member.stop().await;
    assert!(!member.is_running());
}

#[tokio::test]
async fn a_frozen_member_is_silent_until_thawed() {
    let cluster = Cluster::start(1).await;
    let member = cluster.member(0);
    member.freeze();
    let asked = cluster.api(0, "/v3/maintenance/status", json!({}));
    assert!(
        tokio::time::timeout(Duration::from_millis(300), asked)
            .await
            .is_err()
    );
    assert!(member.is_running());
    member.thaw();
    cluster
        .api(0, "/v3/maintenance/status", json!({}))
        .await
        .unwrap();
}

#[tokio::test]
async fn nothing_is_left_behind_not_even_by_a_panic() {
    let (pids, folder) = tokio::spawn(async {
        let cluster = Cluster::start(3).await;
        cluster.member(2).freeze();
        let pids: Vec<u32> = cluster
            .members()
            .iter()
            .filter_map(testbed::Member::pid)
            .collect();
        let folder = cluster.folder().to_owned();
        assert!(folder.exists() && pids.len() == 3);
        let failing = tokio::spawn(async move {
            let _cluster = cluster;
            panic!("as a failing test does");
        });
        assert!(failing.await.is_err());
        (pids, folder)
    })
    .await
    .unwrap();
    assert!(!folder.exists(), "{} is left", folder.display());
    for pid in pids {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} is left"
        );
    }
}

/// Not a test of its own: the one below runs it in a process that is killed.
#[tokio::test]
#[ignore = "run by a_killed_test_process_leaves_nothing_behind"]
async fn a_test_that_never_ends() {
    let cluster = Cluster::start(1).await;
    cluster.member(0).freeze();
    println!(
        "running {} {}",
        cluster.member(0).pid().unwrap(),
        cluster.folder().display()
    );
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_test_process_leaves_nothing_behind() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_test_that_never_ends",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let said = lines.filter_map(|line| Some(line.split_once("running ")?.1.to_owned()));
    let said = said
        .filter(|said| said.contains('/'))
        .take(1)
        .collect::<String>();
    let (pid, folder) = said.split_once(' ').unwrap();
    assert!(Path::new(folder).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let process = format!("/proc/{pid}");
    let gone = async || !Path::new(folder).exists() && !Path::new(&process).exists();
    eventually("cleaning up after a killed process", gone).await;
}
