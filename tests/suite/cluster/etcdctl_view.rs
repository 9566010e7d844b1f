//! What this client wrote, read by etcd's own tool.

use std::time::Duration;

use actix_etcd::{Client, auth::roles::Permission};
use testbed::Cluster;

use crate::support::etcdctl::etcdctl;

#[tokio::test]
async fn etcdctl_reads_the_users_roles_members_leases_and_keys_that_were_written() {
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
    let lease = etcd.lease(Duration::from_secs(600)).await.unwrap();
    let lease = lease.detach();
    etcd.put("leased", "v").lease(lease).await.unwrap();
    let hexadecimal = format!("{lease:x}");
    for (args, expected) in [
        (vec!["get", "greeting"], "hello".to_owned()),
        (vec!["user", "list"], "ann".to_owned()),
        (vec!["user", "get", "ann"], "reader".to_owned()),
        (vec!["role", "get", "reader"], "config/".to_owned()),
        (vec!["member", "list"], format!("{learner:x}")),
        (vec!["lease", "list"], hexadecimal.clone()),
        (
            vec!["lease", "timetolive", "--keys", &hexadecimal],
            "leased".to_owned(),
        ),
    ] {
        let endpoint = format!("--endpoints={}", cluster.endpoints()[0]);
        let args = [vec![endpoint.as_str()], args].concat();
        let Some(printed) = etcdctl(&args) else {
            return;
        };
        assert!(printed.contains(&expected), "{args:?}: {printed}");
    }
}
