//! What this client wrote, read by etcd's own tool.

use std::process::Command;

use actix_etcd::{Client, roles::Permission};
use testbed::Cluster;

/// What `etcdctl` prints; `None`, said loudly, where it is not installed.
fn etcdctl(cluster: &Cluster, args: &[&str]) -> Option<String> {
    let run = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", cluster.endpoints()[0]))
        .args(args)
        .output();
    let Ok(run) = run else {
        println!("NOT CHECKED: etcdctl is not installed (Debian: etcd-client)");
        return None;
    };
    let printed = String::from_utf8_lossy(&run.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{args:?}: {printed} {complaints}");
    Some(printed)
}

#[tokio::test]
async fn etcdctl_reads_the_users_roles_members_and_keys_that_were_written() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("greeting", "hello").await.unwrap();
    etcd.users().add("ann", "word").await.unwrap();
    etcd.roles().add("reader").await.unwrap();
    let permission = Permission::read("config/").prefix();
    etcd.roles().grant("reader", permission).await.unwrap();
    etcd.users().grant_role("ann", "reader").await.unwrap();
    let learner = etcd.cluster().add_learner(["http://127.0.0.1:9"]);
    let learner = learner.await.unwrap().member.id;
    for (args, expected) in [
        (vec!["get", "greeting"], "hello".to_owned()),
        (vec!["user", "list"], "ann".to_owned()),
        (vec!["user", "get", "ann"], "reader".to_owned()),
        (vec!["role", "get", "reader"], "config/".to_owned()),
        (vec!["member", "list"], format!("{learner:x}")),
    ] {
        let Some(printed) = etcdctl(&cluster, &args) else {
            return;
        };
        assert!(printed.contains(&expected), "{args:?}: {printed}");
    }
}
