//! Pages of one range that are served by different members.

use std::collections::BTreeSet;

use testbed::Cluster;

use crate::support::{connected_cluster::connect, quiet_window::ready_members, wait::until};

#[tokio::test]
async fn pages_show_one_revision_after_member_dies() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
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
        // Keys before and after the current page are written. With three members, each write makes the round robin send
        // the next page request to a different member.
        let key = format!("page/{:03}", shown.len() * 7 % 120);
        // The outcome may be unknown when the member is killed. It does not matter here.
        let _ = etcd.put(key, "during").await;
        if shown.len() == 60 {
            let members = cluster.members();
            let mut serving = members
                .iter()
                .filter(|member| member.id() == page.header.member_id);
            serving.next().unwrap().kill();
        }
    }
    assert!(members.len() > 1, "all pages came from one member");
    let full_range = etcd.get("page/").prefix().revision(revision.unwrap());
    assert_eq!(shown, full_range.await.unwrap().kvs);
    assert_eq!(shown.len(), 120);
}
