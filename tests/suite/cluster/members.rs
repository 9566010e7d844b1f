//! The members of a real cluster.

use actix_etcd::{Client, ErrorKind, Outcome};
use testbed::{Cluster, Fault};

use crate::support::wait::until_async;

const NOWHERE: &str = "http://127.0.0.1:9";

async fn client(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoints()).await.unwrap()
}

#[tokio::test]
async fn members_are_listed_added_updated_and_removed() {
    let cluster = Cluster::start(3).await;
    let etcd = client(&cluster).await;
    let known = etcd.cluster().list().await.unwrap();
    assert_eq!(known.members.len(), 3);
    for member in cluster.members() {
        let found = known.members.iter().find(|found| found.id == member.id());
        let found = found.expect("every member is listed");
        assert_eq!(found.client_urls, [member.endpoint()]);
        assert!(!found.name.is_empty() && !found.is_learner);
    }
    let added = etcd.cluster().add([NOWHERE]).await.unwrap();
    assert_eq!(added.member.peer_urls, [NOWHERE]);
    assert!(!added.member.is_learner && added.member.name.is_empty());
    assert_eq!(added.members.len(), 4);
    let again = etcd.cluster().add([NOWHERE]).await.unwrap_err();
    // Within one second, even the id would be the same.
    assert!(
        matches!(
            again.kind(),
            ErrorKind::PeerUrlExists | ErrorKind::MemberExists
        ),
        "{again}"
    );
    let elsewhere = "http://127.0.0.1:10";
    let updated = etcd
        .cluster()
        .update(added.member.id, [elsewhere])
        .await
        .unwrap();
    let found = updated.members.iter().find(|m| m.id == added.member.id);
    assert_eq!(found.unwrap().peer_urls, [elsewhere]);
    let left = etcd.cluster().remove(added.member.id).await.unwrap();
    assert_eq!(left.members.len(), 3);
    let gone = etcd.cluster().remove(added.member.id).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::MemberNotFound);
}

#[tokio::test]
async fn a_learner_is_promoted_when_it_has_caught_up() {
    let cluster = Cluster::start(1).await;
    let etcd = client(&cluster).await;
    let absent = etcd.cluster().add_learner([NOWHERE]).await.unwrap();
    assert!(absent.member.is_learner);
    let early = etcd.cluster().promote(absent.member.id).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::LearnerNotReady);
    etcd.cluster().remove(absent.member.id).await.unwrap();
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
async fn a_member_alone_lists_what_it_knows_and_not_what_is_agreed() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect([cluster.member(0).endpoint()])
        .await
        .unwrap();
    cluster.isolate_with(0, Fault::Freeze);
    cluster.member(1).freeze();
    cluster.member(2).freeze();
    until_async("it lists alone", async || {
        etcd.cluster().list_serializable().await.is_ok()
    })
    .await;
    if etcd.versions().await[0]
        .version
        .as_ref()
        .is_ok_and(|version| version.starts_with("3.4"))
    {
        println!("skipped: etcd 3.4 knows no linearizable list");
        return;
    }
    let agreed = etcd.cluster().list().await.unwrap_err();
    // It says so itself, or it is avoided as it is alone.
    assert!(
        matches!(agreed.kind(), ErrorKind::Unavailable | ErrorKind::NoLeader),
        "{agreed}"
    );
}

#[tokio::test]
async fn urls_that_lead_nowhere_are_refused_before_they_are_sent() {
    let cluster = Cluster::start(1).await;
    let etcd = client(&cluster).await;
    for urls in [vec![], vec!["10.0.0.4:2380"], vec!["http://:1"], vec![""]] {
        let refused = etcd.cluster().add(urls.clone()).await.unwrap_err();
        assert_eq!(refused.outcome(), Outcome::NotSent, "{urls:?}");
    }
    assert_eq!(etcd.cluster().list().await.unwrap().members.len(), 1);
}

#[tokio::test]
async fn versions_are_told_and_old_clusters_refused_where_asked() {
    let cluster = Cluster::start(3).await;
    let etcd = client(&cluster).await;
    let versions = etcd.versions().await;
    assert_eq!(versions.len(), 3);
    for member in &versions {
        assert!(member.version.as_ref().unwrap().starts_with("3."));
    }
    let builder = Client::builder(cluster.endpoints());
    let strict = builder.clone().min_cluster_version("3.99");
    let refused = strict.connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OldCluster);
    let fits = builder.clone().min_cluster_version("3.4");
    fits.connect().await.unwrap();
    let nonsense = builder.min_cluster_version("new");
    assert_eq!(
        nonsense.connect().await.unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}
