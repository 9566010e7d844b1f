//! Data written by this client and read with etcdctl.

use std::time::Duration;

use actix_etcd::{Client, auth::roles::Permission};
use testbed::Cluster;

use crate::support::etcdctl::etcdctl;

#[tokio::test]
async fn etcdctl_reads_written_data() {
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
    let lease_hex = format!("{lease:x}");
    for (args, expected) in [
        (vec!["get", "greeting"], "hello".to_owned()),
        (vec!["user", "list"], "ann".to_owned()),
        (vec!["user", "get", "ann"], "reader".to_owned()),
        (vec!["role", "get", "reader"], "config/".to_owned()),
        (vec!["member", "list"], format!("{learner:x}")),
        (vec!["lease", "list"], lease_hex.clone()),
        (
            vec!["lease", "timetolive", "--keys", &lease_hex],
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
