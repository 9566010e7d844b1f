//! Locks and elections shared with etcd's own tool, both ways round.

use std::{process::Stdio, time::Duration};

use actix_etcd::Client;
use testbed::Cluster;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::support::{skipped::not_checked, wait::until_async};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// A running `etcdctl`; it ends with this value.
struct Etcdctl {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Etcdctl {
    /// `None`, said loudly, where it is not installed.
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
            not_checked("etcdctl is not installed (Debian: etcd-client)");
            return None;
        };
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Some(Self { process, lines })
    }

    async fn line(&mut self) -> String {
        let line = timeout(10 * SECOND, self.lines.next_line()).await;
        line.expect("it prints nothing").unwrap().expect("it ended")
    }

    async fn interrupt(&mut self) {
        let pid = self.process.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().await;
        assert!(sent.unwrap().success());
    }
}

async fn keys_are(etcd: &Client, prefix: &str, number: i64) {
    until_async(&format!("{number} keys under {prefix}"), async || {
        etcd.get(prefix).prefix().await.unwrap().count == number
    })
    .await;
}

#[tokio::test]
async fn who_holds_a_lock_by_etcdctl_is_waited_for_and_the_other_way_round() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    let mutex = session.mutex("l");
    let Some(mut theirs) = Etcdctl::start(&cluster, &["lock", "l"]) else {
        return;
    };
    let key = theirs.line().await;
    assert!(key.starts_with("l/"), "{key}");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    keys_are(&etcd, "l/", 2).await;
    assert!(!waiting.is_finished());
    theirs.interrupt().await;
    let ours = timeout(10 * SECOND, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();

    let mut theirs = Etcdctl::start(&cluster, &["lock", "l"]).unwrap();
    keys_are(&etcd, "l/", 2).await;
    let early = timeout(SECOND / 2, theirs.lines.next_line()).await;
    assert!(early.is_err(), "it has the lock, too: {early:?}");
    ours.unlock().await.unwrap();
    let key = theirs.line().await;
    let found = etcd.get(key.as_str()).await.unwrap();
    assert_eq!(found.count, 1, "{key}");
    theirs.interrupt().await;
    keys_are(&etcd, "l/", 0).await;
}

#[tokio::test]
async fn elections_are_held_and_observed_together_with_etcdctl() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    let election = session.election("e");
    let ours = election.campaign("ours").await.unwrap();
    let Some(mut observer) = Etcdctl::start(&cluster, &["elect", "-l", "e"]) else {
        return;
    };
    assert_eq!(observer.line().await, format!("e/{:x}", ours.lease()));
    assert_eq!(observer.line().await, "ours");
    ours.proclaim("ours2").await.unwrap();
    observer.line().await;
    assert_eq!(observer.line().await, "ours2");

    let mut theirs = Etcdctl::start(&cluster, &["elect", "e", "theirs"]).unwrap();
    keys_are(&etcd, "e/", 2).await;
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!(leader.value, "ours2");
    ours.resign().await.unwrap();
    let key = theirs.line().await;
    assert_eq!(theirs.line().await, "theirs");
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((leader.key, leader.value), (key.into(), "theirs".into()));

    let campaign = tokio::spawn(async move { election.campaign("ours3").await });
    keys_are(&etcd, "e/", 2).await;
    assert!(!campaign.is_finished());
    theirs.interrupt().await;
    let ours = timeout(10 * SECOND, campaign).await.unwrap().unwrap();
    ours.unwrap().resign().await.unwrap();
}
