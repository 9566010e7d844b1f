//! Member management and member versions of a real cluster.

use actix_etcd::{Client, ErrorKind, Outcome};
use testbed::{Cluster, Fault};

use crate::support::wait::until_async;

const UNUSED_PEER_URL: &str = "http://127.0.0.1:9";

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoints()).await.unwrap()
}

#[tokio::test]
async fn members_are_listed_added_updated_and_removed() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let listed = etcd.cluster().list().await.unwrap();
    assert_eq!(listed.members.len(), 3);
    for member in cluster.members() {
        let found = listed.members.iter().find(|found| found.id == member.id());
        let found = found.expect("every member is listed");
        assert_eq!(found.client_urls, [member.endpoint()]);
        assert!(!found.name.is_empty() && !found.is_learner);
    }
    let added = etcd.cluster().add([UNUSED_PEER_URL]).await.unwrap();
    assert_eq!(added.member.peer_urls, [UNUSED_PEER_URL]);
    assert!(!added.member.is_learner && added.member.name.is_empty());
    assert_eq!(added.members.len(), 4);
    let duplicate = etcd.cluster().add([UNUSED_PEER_URL]).await.unwrap_err();
    // Within one second, the duplicate even gets the same id.
    assert!(
        matches!(
            duplicate.kind(),
            ErrorKind::PeerUrlExists | ErrorKind::MemberExists
        ),
        "{duplicate}"
    );
    let other_peer_url = "http://127.0.0.1:10";
    let updated = etcd
        .cluster()
        .update(added.member.id, [other_peer_url])
        .await
        .unwrap();
    let found = updated
        .members
        .iter()
        .find(|member| member.id == added.member.id);
    assert_eq!(found.unwrap().peer_urls, [other_peer_url]);
    let removed = etcd.cluster().remove(added.member.id).await.unwrap();
    assert_eq!(removed.members.len(), 3);
    let not_found = etcd.cluster().remove(added.member.id).await.unwrap_err();
    assert_eq!(not_found.kind(), ErrorKind::MemberNotFound);
}

#[tokio::test]
async fn learner_is_promoted_after_catching_up() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let unstarted = etcd.cluster().add_learner([UNUSED_PEER_URL]).await.unwrap();
    assert!(unstarted.member.is_learner);
    let not_ready = etcd
        .cluster()
        .promote(unstarted.member.id)
        .await
        .unwrap_err();
    assert_eq!(not_ready.kind(), ErrorKind::LearnerNotReady);
    etcd.cluster().remove(unstarted.member.id).await.unwrap();
    let learner = cluster.add_learner().await;
    let id = cluster.member(learner).id();
    until_async("the learner is promoted", async || {
        etcd.cluster().promote(id).await.is_ok()
    })
    .await;
    let members = etcd.cluster().list().await.unwrap().members;
    assert!(members.iter().all(|member| !member.is_learner));
}

#[tokio::test]
async fn isolated_member_serves_only_serializable_list() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect([cluster.member(0).endpoint()])
        .await
        .unwrap();
    cluster.isolate_with(0, Fault::Freeze);
    cluster.member(1).freeze();
    cluster.member(2).freeze();
    until_async("the isolated member lists the members", async || {
        etcd.cluster().list_serializable().await.is_ok()
    })
    .await;
    if etcd.versions().await[0]
        .version
        .as_ref()
        .is_ok_and(|version| version.starts_with("3.4"))
    {
        println!("skipped: etcd 3.4 has no linearizable member list");
        return;
    }
    let linearizable = etcd.cluster().list().await.unwrap_err();
    // Either the member itself reports it, or the client avoids the isolated member.
    assert!(
        matches!(
            linearizable.kind(),
            ErrorKind::Unavailable | ErrorKind::NoLeader
        ),
        "{linearizable}"
    );
}

#[tokio::test]
async fn invalid_peer_urls_are_not_sent() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    for urls in [vec![], vec!["10.0.0.4:2380"], vec!["http://:1"], vec![""]] {
        let refused = etcd.cluster().add(urls.clone()).await.unwrap_err();
        assert_eq!(refused.outcome(), Outcome::NotSent, "{urls:?}");
    }
    assert_eq!(etcd.cluster().list().await.unwrap().members.len(), 1);
}

#[tokio::test]
async fn versions_are_reported_and_minimum_is_enforced() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let versions = etcd.versions().await;
    assert_eq!(versions.len(), 3);
    for member in &versions {
        assert!(member.version.as_ref().unwrap().starts_with("3."));
    }
    let builder = Client::builder(cluster.endpoints());
    let too_high = builder.clone().min_cluster_version("3.99");
    let refused = too_high.connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OldCluster);
    let satisfied = builder.clone().min_cluster_version("3.4");
    satisfied.connect().await.unwrap();
    let invalid = builder.min_cluster_version("new");
    assert_eq!(
        invalid.connect().await.unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}
