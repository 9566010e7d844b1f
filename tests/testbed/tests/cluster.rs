//! Real clusters: start, faults of members, cleanup.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Cluster, Direction, encode, number};

async fn wait_until(event: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{event} did not happen in time"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn cluster_serves_on_every_member() {
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
        assert_eq!(number::<u64>(&range["count"]), 1, "member {index}");
        assert_ne!(cluster.member(index).id(), 0);
        for other in (0..3).filter(|other| *other != index) {
            let link = cluster.peer_link(index, other);
            assert!(link.connections() > 0, "{} has no connections", link.name());
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
        let reported = status["version"].as_str().unwrap();
        assert!(
            reported.starts_with(version),
            "requested {version}, got {reported}"
        );
    }
}

#[tokio::test]
async fn isolated_member_has_no_leader_but_responds() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.isolate(follower);
    let has_no_leader = || async {
        let status = cluster
            .api(follower, "/v3/maintenance/status", json!({}))
            .await
            .unwrap();
        number::<u64>(&status["leader"]) == 0
    };
    wait_until("the loss of the leader", has_no_leader).await;
    assert!(
        cluster
            .member(follower)
            .metric("etcd_server_has_leader")
            .await
            == Some(0.0)
    );
    assert_eq!(
        cluster.leader().await,
        leader,
        "the others keep their leader"
    );
    cluster.heal();
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn peer_link_carries_connections_its_source_dialled() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    // The leader sends entries over the connection that the follower dialled.
    let dialled = cluster.peer_link(follower, leader);
    let reverse = cluster.peer_link(leader, follower);
    let before = (
        dialled.bytes(Direction::ToClient),
        reverse.bytes(Direction::ToServer),
    );
    let put = json!({"key": encode("k"), "value": encode(vec![b'v'; 500_000])});
    cluster.api(leader, "/v3/kv/put", put).await.unwrap();
    // The put needs only one follower, possibly the other one.
    let arrived = async || dialled.bytes(Direction::ToClient) - before.0 >= 500_000;
    wait_until("the transfer of the entry", arrived).await;
    assert!(reverse.bytes(Direction::ToServer) - before.1 < 100_000);
}

#[tokio::test]
async fn isolated_leader_is_replaced() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    cluster.isolate(leader);
    wait_until("the election of another leader", || async {
        cluster.leader().await != leader
    })
    .await;
    cluster.heal();
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn killed_member_restarts_with_its_data() {
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
async fn frozen_member_responds_only_after_thaw() {
    let cluster = Cluster::start(1).await;
    let member = cluster.member(0);
    member.freeze();
    let request = cluster.api(0, "/v3/maintenance/status", json!({}));
    assert!(
        tokio::time::timeout(Duration::from_millis(300), request)
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
async fn panicking_test_leaves_no_process_or_folder() {
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
            panic!("simulated test failure");
        });
        assert!(failing.await.is_err());
        (pids, folder)
    })
    .await
    .unwrap();
    assert!(!folder.exists(), "{} still exists", folder.display());
    for pid in pids {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} still exists"
        );
    }
}

/// Helper process of `killed_test_process_leaves_nothing_behind`.
#[tokio::test]
#[ignore = "run by killed_test_process_leaves_nothing_behind"]
async fn test_that_never_ends() {
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
async fn killed_test_process_leaves_nothing_behind() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "test_that_never_ends",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let reported = lines.filter_map(|line| Some(line.split_once("running ")?.1.to_owned()));
    let reported = reported
        .filter(|line| line.contains('/'))
        .take(1)
        .collect::<String>();
    let (pid, folder) = reported.split_once(' ').unwrap();
    assert!(Path::new(folder).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let process = format!("/proc/{pid}");
    let removed = async || !Path::new(folder).exists() && !Path::new(&process).exists();
    wait_until("the cleanup after a killed process", removed).await;
}
