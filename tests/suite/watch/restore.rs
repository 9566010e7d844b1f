//! Watches of a cluster that was restored from an old backup, or lost its data: the cluster id is the same, and the
//! revision is lower.

use actix_etcd::{WatchEvent, kv::KeyValue, watch::WatchEnd};
use testbed::{Cluster, Fault};

use crate::support::{
    cluster_backup::{back_up, restore},
    connected_cluster::connect,
    leg_members::wait_for_legs,
    wait::until,
    watch_items::{WATCH_TIMEOUT, next_change, next_item, read_to_end},
    write_load::put_until_ok,
};

fn keys(kvs: &[KeyValue]) -> Vec<String> {
    let key = |kv: &KeyValue| String::from_utf8_lossy(&kv.key).into_owned();
    kvs.iter().map(key).collect()
}

async fn check_restored_cluster(hedged: bool) {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    for key in ["k/changed", "k/deleted", "other"] {
        etcd.put(key, "backup").await.unwrap();
    }
    back_up(&cluster).await;
    let open = etcd.watch("k/").prefix().resync();
    let mut watch = if hedged {
        let watch = open.hedged().await.unwrap();
        wait_for_legs(&cluster, 2).await;
        watch
    } else {
        open.await.unwrap()
    };
    put_until_ok(&etcd, "k/changed", "later").await;
    etcd.delete("k/deleted").await.unwrap();
    let seen = etcd
        .put("k/created", "later")
        .await
        .unwrap()
        .header
        .revision;
    while next_change(&mut watch).await.0 < seen {}
    assert_eq!(watch.revision(), seen);
    restore(&cluster).await;
    let resynced = loop {
        match next_item(&mut watch).await {
            WatchEvent::RevisionRegressed {
                seen: reported,
                current,
            } => assert!(current < reported && reported >= seen),
            WatchEvent::Resynced(resynced) => break resynced,
            other => panic!("{other:?}"),
        }
    };
    assert!(resynced.revision < seen);
    assert_eq!(watch.revision(), resynced.revision);
    assert_eq!(watch.freshness().revision, resynced.revision);
    assert_eq!(keys(&resynced.created), ["k/deleted"]);
    assert_eq!(keys(&resynced.changed), ["k/changed"]);
    assert_eq!(resynced.changed[0].value, "backup");
    assert_eq!(resynced.deleted, ["k/created"]);
    let after = put_until_ok(&etcd, "k/after", "v").await;
    assert!(after <= seen, "the event must have a revision of the past");
    assert_eq!(
        next_change(&mut watch).await,
        (after, vec!["k/after".into()])
    );
    etcd.shutdown().await;
}

#[tokio::test]
async fn resync_watch_follows_restored_cluster() {
    check_restored_cluster(false).await;
}

#[tokio::test]
async fn hedged_watch_follows_restored_cluster() {
    check_restored_cluster(true).await;
}

#[tokio::test]
async fn watch_without_resync_ends_after_data_loss() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let mut watch = etcd.watch("k").await.unwrap();
    let mut seen = 0;
    for _ in 0..20 {
        seen = etcd.put("k", "v").await.unwrap().header.revision;
    }
    while next_change(&mut watch).await.0 < seen {}
    restore(&cluster).await;
    match read_to_end(&mut watch).await {
        WatchEnd::RevisionRegressed {
            seen: reported,
            current,
        } => assert!(reported == seen && current < seen, "{reported} {current}"),
        other => panic!("{other}"),
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn watch_survives_lagging_member() {
    let cluster = Cluster::start(3).await;
    let lagging = (cluster.leader().await + 1) % 3;
    let up_to_date = cluster.member((lagging + 1) % 3);
    let lagging_member = cluster.member(lagging);
    let endpoints = [up_to_date.endpoint(), lagging_member.endpoint()];
    // The watch starts on the other member.
    lagging_member.client_link().set(Fault::Refuse);
    let etcd = connect(endpoints).await;
    let mut watch = etcd.watch("k").require_leader(false).await.unwrap();
    lagging_member.client_link().heal();
    cluster.isolate(lagging);
    let writer = connect([up_to_date.direct_endpoint()]).await;
    let seen = put_until_ok(&writer, "k", "seen").await;
    while next_change(&mut watch).await.0 < seen {}
    // Only the lagging member is left, and no majority can be read.
    up_to_date.client_link().set(Fault::Refuse);
    loop {
        match next_item(&mut watch).await {
            WatchEvent::RevisionRegressed {
                seen: reported,
                current,
            } => {
                assert!(current < reported && reported >= seen);
                break;
            }
            WatchEvent::Ended(end) => panic!("{end}"),
            _ => {}
        }
    }
    up_to_date.client_link().heal();
    let ready = actix_etcd::balancer::ConnectivityState::Ready;
    until("a majority can be read", || {
        etcd.connectivity()
            .iter()
            .any(|member| member.state == ready)
    })
    .await;
    etcd.get("k").timeout(WATCH_TIMEOUT).await.unwrap();
    cluster.heal();
    let after = put_until_ok(&writer, "k", "after").await;
    assert_eq!(next_change(&mut watch).await, (after, vec!["k".into()]));
    etcd.shutdown().await;
}
