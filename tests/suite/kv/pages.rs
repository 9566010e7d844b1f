//! Pages of one range, each from another member.

use std::collections::BTreeSet;

use actix_etcd::Client;
use testbed::Cluster;

use crate::support::{quiet_window::ready_members, wait::until};

#[tokio::test]
async fn pages_show_one_revision_after_member_dies() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    until("all members are ready", || ready_members(&etcd) == 3).await;
    for n in 0..120 {
        etcd.put(format!("page/{n:03}"), "before").await.unwrap();
    }
    let mut pages = etcd.get("page/").prefix().pages(10);
    let (mut shown, mut members, mut revision) = (Vec::new(), BTreeSet::new(), None);
    while let Some(page) = pages.next().await {
        let page = page.unwrap();
        members.insert(page.header.member_id);
        revision.get_or_insert(page.header.revision);
        shown.extend(page.kvs);
        // Ahead of the pages and behind them; as there are three members, the next page comes from another one.
        let key = format!("page/{:03}", shown.len() * 7 % 120);
        // What dies under it may leave it unknown: whether it was written does not matter here.
        let _ = etcd.put(key, "meanwhile").await;
        if shown.len() == 60 {
            let members = cluster.members();
            let mut served = members
                .iter()
                .filter(|one| one.id() == page.header.member_id);
            served.next().unwrap().kill();
        }
    }
    assert!(members.len() > 1, "they came from several members");
    let whole = etcd.get("page/").prefix().revision(revision.unwrap());
    assert_eq!(shown, whole.await.unwrap().kvs);
    assert_eq!(shown.len(), 120);
}
