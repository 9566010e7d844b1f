//! Maintenance requests: status, alarms, defragmentation, hashes, leader transfer, downgrade.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, Outcome,
    balancer::Pinned,
    maintenance::{Alarm, AlarmType},
};
use testbed::{Cluster, Reply, ScriptedServer};

use crate::support::wait::until_async;

const DEFRAGMENT: &str = "/etcdserverpb.Maintenance/Defragment";

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoints()).await.unwrap()
}

/// Returns the version of the members, such as `(3, 4)`.
async fn version(etcd: &Client) -> (u32, u32) {
    let version = etcd.versions().await[0].version.clone().unwrap();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap(), parts.next().unwrap())
}

#[tokio::test]
async fn status_comes_from_named_member() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let leader = cluster.member(cluster.leader().await).id();
    for member in cluster.members() {
        for _ in 0..3 {
            let status = etcd
                .maintenance()
                .status()
                .at(member.endpoint())
                .await
                .unwrap();
            assert_eq!(status.header.member_id, member.id());
            assert_eq!(status.leader, leader);
            assert!(status.db_size > 0 && status.raft_term > 0);
        }
        assert_eq!(
            member.client_link().accepted(),
            1,
            "one connection per member"
        );
    }
    let unknown_endpoint = etcd.maintenance().status().at("http://127.0.0.1:9").await;
    assert_eq!(
        unknown_endpoint.unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[tokio::test]
async fn request_to_dead_member_is_not_redirected() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let dead = cluster.member(2);
    dead.kill();
    let failed = etcd
        .maintenance()
        .status()
        .at(dead.endpoint())
        .timeout(Duration::from_millis(800))
        .await
        .unwrap_err();
    assert!(
        matches!(
            failed.kind(),
            ErrorKind::Unavailable | ErrorKind::DeadlineExceeded
        ),
        "{failed}"
    );
    etcd.maintenance().status().await.unwrap();
    dead.start().await;
    etcd.maintenance()
        .status()
        .at(dead.endpoint())
        .await
        .unwrap();
}

#[tokio::test]
async fn alarm_is_raised_listed_and_disarmed() {
    let cluster = Cluster::builder()
        .quota_backend_bytes(1 << 20)
        .start()
        .await;
    let etcd = connect(&cluster).await;
    assert!(etcd.maintenance().alarms().await.unwrap().alarms.is_empty());
    let value = vec![b'x'; 200 << 10];
    let mut revision = 0;
    loop {
        match etcd.put("large", value.clone()).await {
            Ok(put) => revision = put.header.revision,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                break;
            }
        }
    }
    let raised = etcd.maintenance().alarms().await.unwrap().alarms;
    let alarm = Alarm {
        member: cluster.member(0).id(),
        kind: AlarmType::Nospace,
    };
    assert_eq!(raised, [alarm]);
    etcd.compact(revision).physical().await.unwrap();
    let before = etcd.maintenance().status().await.unwrap();
    let endpoint = cluster.member(0).endpoint();
    etcd.maintenance().defragment().at(&endpoint).await.unwrap();
    let after = etcd.maintenance().status().await.unwrap();
    assert!(after.db_size < before.db_size);
    let disarmed = etcd.maintenance().disarm(alarm).await.unwrap();
    assert_eq!(disarmed.alarms, [alarm]);
    etcd.put("k", "v").await.unwrap();
    assert!(etcd.maintenance().disarm_all().await.unwrap().is_empty());
}

#[tokio::test]
async fn all_alarms_are_disarmed_together() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let member = cluster.member(0).id();
    for alarm in ["NOSPACE", "CORRUPT"] {
        let raise = serde_json::json!({
            "action": "ACTIVATE", "memberID": member.to_string(), "alarm": alarm,
        });
        cluster.api_any("/v3/maintenance/alarm", raise).await;
    }
    assert_eq!(etcd.maintenance().disarm_all().await.unwrap().len(), 2);
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn lost_defragment_is_not_retried_elsewhere() {
    let members = [ScriptedServer::start().await, ScriptedServer::start().await];
    for member in &members {
        member.on(DEFRAGMENT, |_| Reply::close_connection());
    }
    let endpoints = members.each_ref().map(ScriptedServer::endpoint);
    let etcd = Client::connect(endpoints).await.unwrap();
    let lost = etcd.maintenance().defragment().await.unwrap_err();
    assert_eq!(lost.outcome(), Outcome::Unknown, "{lost}");
    let requests: usize = members.iter().map(|member| member.count(DEFRAGMENT)).sum();
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn members_with_same_data_have_same_hash() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let revision = etcd.put("k", "v").await.unwrap().header.revision;
    let mut hashes = Vec::new();
    for endpoint in cluster.endpoints() {
        until_async("the member has the revision", async || {
            let hashed = etcd.maintenance().hash_kv(revision).at(&endpoint).await;
            hashed.is_ok()
        })
        .await;
        let hashed = etcd.maintenance().hash_kv(revision).at(&endpoint).await;
        hashes.push(hashed.unwrap().hash);
        let whole = etcd.maintenance().hash().at(&endpoint).await.unwrap();
        assert_ne!(whole.hash, 0);
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    let future = etcd
        .maintenance()
        .hash_kv(revision + 1000)
        .await
        .unwrap_err();
    assert_eq!(future.kind(), ErrorKind::FutureRevision);
}

#[tokio::test]
async fn leader_is_moved_to_other_members() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    // A pinned cold client has a single connection and dials the leader for this request.
    let pinned = Client::builder(cluster.endpoints()).balance(Pinned::cold());
    let pinned = pinned.connect().await.unwrap();
    for etcd in [&etcd, &pinned] {
        for step in 0..3 {
            let to = (cluster.leader().await + 1) % 3;
            let id = cluster.member(to).id();
            etcd.maintenance().move_leader(id).await.unwrap();
            assert_eq!(cluster.leader().await, to, "step {step}");
        }
    }
    let not_a_member = etcd.maintenance().move_leader(1).await.unwrap_err();
    assert_eq!(not_a_member.kind(), ErrorKind::BadLeaderTransferee);
}

#[tokio::test]
async fn downgrade_is_validated_enabled_and_cancelled() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let (major, minor) = version(&etcd).await;
    let target = format!("{major}.{}.0", minor - 1);
    let maintenance = etcd.maintenance();
    if (major, minor) < (3, 5) {
        let unknown = maintenance.downgrade_validate(&target).await.unwrap_err();
        return assert_eq!(unknown.kind(), ErrorKind::Unimplemented);
    }
    until_async("the cluster version is known", async || {
        maintenance.downgrade_validate(&target).await.is_ok()
    })
    .await;
    let wrong = maintenance.downgrade_validate("3.0.0").await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidDowngradeTargetVersion);
    if (major, minor) < (3, 6) {
        return println!("skipped: etcd 3.5 never responds to enabling or cancelling a downgrade");
    }
    maintenance.downgrade_enable(&target).await.unwrap();
    let status = maintenance.status().await.unwrap();
    assert_eq!(status.downgrading_to.as_deref(), Some(target.as_str()));
    maintenance.downgrade_cancel().await.unwrap();
    let status = maintenance.status().await.unwrap();
    assert_eq!(status.downgrading_to, None);
}

/// The deadline of the search for the leader passes during a request to a follower.
#[tokio::test]
async fn leader_move_at_follower_fails_with_its_reason() {
    let follower = ScriptedServer::start().await;
    follower.on("/etcdserverpb.Maintenance/MoveLeader", |_| {
        Reply::status(9, "etcdserver: not leader").after(Duration::from_millis(200))
    });
    let etcd = Client::connect([follower.endpoint()]).await.unwrap();
    let moved = etcd.maintenance().move_leader(1);
    let refused = moved.timeout(Duration::from_millis(400)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotLeader, "{refused}");
}
