//! Locks and elections shared with `etcdctl`.

use std::{process::Stdio, time::Duration};

use actix_etcd::Client;
use testbed::Cluster;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::support::{skipped_check::report_skipped, wait::until_async};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

/// A running `etcdctl`. Dropping this value kills the process.
struct Etcdctl {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Etcdctl {
    /// Returns `None` and reports a skipped check where `etcdctl` is not installed.
    fn start(cluster: &Cluster, args: &[&str]) -> Option<Self> {
        let process = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", cluster.endpoints()[0]))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let Ok(mut process) = process else {
            report_skipped("etcdctl is not installed (Debian: etcd-client)");
            return None;
        };
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Some(Self { process, lines })
    }

    async fn next_line(&mut self) -> String {
        let line = timeout(10 * SECOND, self.lines.next_line()).await;
        line.expect("etcdctl printed no line within 10 s")
            .unwrap()
            .expect("etcdctl ended")
    }

    async fn interrupt(&mut self) {
        let pid = self.process.id().expect("etcdctl is running").to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().await;
        assert!(sent.unwrap().success());
    }
}

async fn until_key_count(etcd: &Client, prefix: &str, count: i64) {
    until_async(&format!("{prefix} has {count} keys"), async || {
        etcd.get(prefix).prefix().await.unwrap().count == count
    })
    .await;
}

#[tokio::test]
async fn lock_excludes_etcdctl_in_both_directions() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    let Some(mut etcdctl) = Etcdctl::start(&cluster, &["lock", "l"]) else {
        return;
    };
    let key = etcdctl.next_line().await;
    assert!(key.starts_with("l/"), "{key}");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until_key_count(&etcd, "l/", 2).await;
    assert!(!waiting.is_finished());
    etcdctl.interrupt().await;
    let guard = timeout(10 * SECOND, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();

    let mut etcdctl = Etcdctl::start(&cluster, &["lock", "l"]).unwrap();
    until_key_count(&etcd, "l/", 2).await;
    let early = timeout(SECOND / 2, etcdctl.lines.next_line()).await;
    assert!(early.is_err(), "etcdctl acquired a held lock: {early:?}");
    guard.unlock().await.unwrap();
    let key = etcdctl.next_line().await;
    let found = etcd.get(key.as_str()).await.unwrap();
    assert_eq!(found.count, 1, "{key}");
    etcdctl.interrupt().await;
    until_key_count(&etcd, "l/", 0).await;
}

#[tokio::test]
async fn election_works_together_with_etcdctl() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    let election = session.election("e");
    let leadership = election.campaign("ours").await.unwrap();
    let Some(mut observer) = Etcdctl::start(&cluster, &["elect", "-l", "e"]) else {
        return;
    };
    assert_eq!(
        observer.next_line().await,
        format!("e/{:x}", leadership.lease())
    );
    assert_eq!(observer.next_line().await, "ours");
    leadership.proclaim("ours2").await.unwrap();
    observer.next_line().await;
    assert_eq!(observer.next_line().await, "ours2");

    let mut etcdctl = Etcdctl::start(&cluster, &["elect", "e", "theirs"]).unwrap();
    until_key_count(&etcd, "e/", 2).await;
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!(leader.value, "ours2");
    leadership.resign().await.unwrap();
    let key = etcdctl.next_line().await;
    assert_eq!(etcdctl.next_line().await, "theirs");
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((leader.key, leader.value), (key.into(), "theirs".into()));

    let campaign = tokio::spawn(async move { election.campaign("ours3").await });
    until_key_count(&etcd, "e/", 2).await;
    assert!(!campaign.is_finished());
    etcdctl.interrupt().await;
    let leadership = timeout(10 * SECOND, campaign).await.unwrap().unwrap();
    leadership.unwrap().resign().await.unwrap();
}
