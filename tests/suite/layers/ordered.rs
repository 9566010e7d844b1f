//! Ordered clients and a member that is cut off from the others, and so returns old states.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind};
use testbed::Cluster;

use crate::support::{
    auth_cluster::rare_probes,
    quiet_window::ready_members,
    wait::{until, until_async},
    write_load::put_until_ok,
};

async fn revision(etcd: &Client) -> i64 {
    let read = etcd.get("k").serializable().await;
    read.unwrap().header.revision
}

#[tokio::test]
async fn ordered_reads_are_never_older_on_lagging_member() {
    let cluster = Cluster::start(3).await;
    // With rare probes, the client uses the member as long as it responds.
    let builder = Client::builder(cluster.endpoints()).liveness(rare_probes());
    let builder = builder.request_timeout(Duration::from_secs(2));
    let plain = builder.connect().await.unwrap();
    until("all members are ready", || ready_members(&plain) == 3).await;
    let lagging = (cluster.leader().await + 1) % 3;
    cluster.isolate(lagging);
    let members = cluster.members().into_iter();
    let others = members.filter(|member| member.index() != lagging);
    let others = others.map(|member| member.direct_endpoint());
    let writer = Client::connect(others).await.unwrap();
    let written = put_until_ok(&writer, "k", "v").await;

    let ordered = plain.ordered();
    until_async("the write is read", async || {
        revision(&ordered).await >= written
    })
    .await;
    for _ in 0..3 {
        // Until the client finds out that the member has lost its leader, one read in three goes there first.
        for _ in 0..20 {
            let read = ordered.get("k").serializable().await.unwrap();
            assert!(read.header.revision >= written);
            assert_eq!(read.value().unwrap(), "v");
        }
        let only = cluster.member(lagging).endpoint();
        plain.set_endpoints([only]).await.unwrap();
        assert!(revision(&plain).await < written);
        plain.set_endpoints(cluster.endpoints()).await.unwrap();
    }

    // The lagging member is no substitute for the others.
    let only = cluster.member(lagging).endpoint();
    plain.set_endpoints([only]).await.unwrap();
    let stale = ordered.get("k").serializable().await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleRead, "{stale}");
    let text = stale.to_string();
    assert!(text.contains(&format!("revision {written}")), "{text}");

    cluster.heal();
    until_async("the member is no longer behind", async || {
        let read = ordered.get("k").serializable().await;
        read.is_ok_and(|read| read.header.revision >= written)
    })
    .await;
}
