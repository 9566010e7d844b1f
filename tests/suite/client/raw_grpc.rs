//! The generated messages, sent to real etcd with tonic's generated clients.

use actix_etcd::{
    Client,
    proto::{
        self, auth_client::AuthClient, cluster_client::ClusterClient,
        health::health_client::HealthClient, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, v3electionpb, v3lockpb, watch_client::WatchClient,
    },
};
use testbed::{Cluster, Fault};
use tokio_stream::StreamExt;

use crate::support::wait::TEST_TIMEOUT;

#[tokio::test]
async fn kv_messages_round_trip() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut kv = KvClient::new(etcd.grpc());
    let put = proto::PutRequest {
        key: "k".into(),
        value: "v".into(),
        prev_kv: true,
        ..Default::default()
    };
    kv.put(put.clone()).await.unwrap();
    let replaced = kv.put(put).await.unwrap().into_inner();
    assert_eq!(replaced.prev_kv.unwrap().value, "v");
    let range = proto::RangeRequest {
        key: "k".into(),
        ..Default::default()
    };
    let found = kv.range(range.clone()).await.unwrap().into_inner();
    assert_eq!((found.count, found.kvs[0].version), (1, 2));
    let txn = proto::TxnRequest {
        success: vec![proto::RequestOp {
            request: Some(proto::request_op::Request::RequestRange(range.clone())),
        }],
        ..Default::default()
    };
    assert!(kv.txn(txn).await.unwrap().into_inner().succeeded);
    let compaction = proto::CompactionRequest {
        revision: found.header.unwrap().revision,
        physical: true,
    };
    kv.compact(compaction).await.unwrap();
    let deletion = proto::DeleteRangeRequest {
        key: "k".into(),
        prev_kv: true,
        ..Default::default()
    };
    assert_eq!(
        kv.delete_range(deletion)
            .await
            .unwrap()
            .into_inner()
            .prev_kvs[0]
            .value,
        "v"
    );
}

/// Returns whether the server has this version or a later one.
async fn server_is_at_least(etcd: &Client, release: (u32, u32)) -> bool {
    let status = etcd.maintenance().status().await.unwrap();
    let mut numbers = status
        .version
        .split('.')
        .map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= release
}

fn assert_unimplemented(status: &tonic::Status) {
    assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
}

#[tokio::test]
async fn range_stream_works_since_3_7() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    for key in 0..20 {
        etcd.put(format!("k/{key}"), "v").await.unwrap();
    }
    let range = proto::RangeRequest {
        key: "k/".into(),
        range_end: "k0".into(),
        ..Default::default()
    };
    let mut kv = KvClient::new(etcd.grpc());
    let pieces = kv.range_stream(range).await;
    if !server_is_at_least(&etcd, (3, 7)).await {
        // The status comes with the headers or in place of the first message.
        let refused = match pieces {
            Err(status) => status,
            Ok(pieces) => pieces.into_inner().next().await.unwrap().unwrap_err(),
        };
        return assert_unimplemented(&refused);
    }
    let mut pieces = pieces.unwrap().into_inner();
    let mut found = Vec::new();
    while let Some(piece) = pieces.next().await {
        found.extend(piece.unwrap().range_response.unwrap().kvs);
    }
    assert_eq!(found.len(), 20);
}

#[tokio::test]
async fn health_statuses_are_listed() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut health = HealthClient::new(etcd.grpc());
    let listed = health
        .list(proto::health::HealthListRequest::default())
        .await;
    match listed {
        Ok(listed) => assert!(!listed.into_inner().statuses.is_empty()),
        // Every supported release has this RPC in its latest patch version, but a custom binary may be older.
        Err(status) if std::env::var_os("ETCD_BIN").is_some() => assert_unimplemented(&status),
        Err(status) => panic!("{status}"),
    }
}

#[tokio::test]
async fn lease_and_watch_streams_round_trip() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut leases = LeaseClient::new(etcd.grpc());
    let granted = leases
        .lease_grant(proto::LeaseGrantRequest { ttl: 60, id: 42 })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((granted.id, granted.ttl), (42, 60));
    let (keep_alives, queue) = tokio::sync::mpsc::channel(4);
    let requests = tokio_stream::wrappers::ReceiverStream::new(queue);
    // etcd sends the headers of a stream together with its first response.
    keep_alives
        .send(proto::LeaseKeepAliveRequest { id: 42 })
        .await
        .unwrap();
    let mut responses = leases
        .lease_keep_alive(requests)
        .await
        .unwrap()
        .into_inner();
    for _ in 0..3 {
        assert_eq!(responses.next().await.unwrap().unwrap().ttl, 60);
        keep_alives
            .send(proto::LeaseKeepAliveRequest { id: 42 })
            .await
            .unwrap();
    }
    assert_eq!(responses.next().await.unwrap().unwrap().ttl, 60);
    drop(keep_alives);
    assert!(responses.next().await.is_none());
    let time_to_live = proto::LeaseTimeToLiveRequest { id: 42, keys: true };
    assert_eq!(
        leases
            .lease_time_to_live(time_to_live)
            .await
            .unwrap()
            .into_inner()
            .granted_ttl,
        60
    );
    let all = leases
        .lease_leases(proto::LeaseLeasesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(all.leases[0].id, 42);
    leases
        .lease_revoke(proto::LeaseRevokeRequest { id: 42 })
        .await
        .unwrap();

    let mut watches = WatchClient::new(etcd.grpc());
    let create = proto::WatchCreateRequest {
        key: "w".into(),
        watch_id: 7,
        prev_kv: true,
        ..Default::default()
    };
    let (watch_requests, queue) = tokio::sync::mpsc::channel(4);
    watch_requests
        .send(proto::WatchRequest {
            request_union: Some(proto::watch_request::RequestUnion::CreateRequest(create)),
        })
        .await
        .unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(queue);
    let mut responses = watches.watch(requests).await.unwrap().into_inner();
    let created = responses.next().await.unwrap().unwrap();
    assert!(created.created && created.watch_id == 7);
    etcd.put("w", "x").await.unwrap();
    let events = responses.next().await.unwrap().unwrap().events;
    assert_eq!(events[0].kv.as_ref().unwrap().value, "x");
}

#[tokio::test]
async fn raw_stream_ends_when_its_member_is_silent() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let create = proto::watch_request::RequestUnion::CreateRequest(proto::WatchCreateRequest {
        key: "k".into(),
        ..Default::default()
    });
    let create = proto::WatchRequest {
        request_union: Some(create),
    };
    // The request stream stays open.
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut watch = WatchClient::new(etcd.grpc());
    let mut responses = watch.watch(requests).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().unwrap().created);
    cluster.member(0).client_link().set(Fault::Freeze);
    let next = tokio::time::timeout(TEST_TIMEOUT, responses.message()).await;
    next.expect("the stream ends").unwrap_err();
}

#[tokio::test]
async fn cluster_and_maintenance_messages_round_trip() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut members = ClusterClient::new(etcd.grpc());
    let list = members
        .member_list(proto::MemberListRequest { linearizable: true })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(list.members[0].id, cluster.member(0).id());
    let mut maintenance = MaintenanceClient::new(etcd.grpc());
    let status = maintenance
        .status(proto::StatusRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(status.leader, cluster.member(0).id());
    assert!(!status.version.is_empty() && status.raft_index > 0 && status.db_size > 0);
    assert!(
        maintenance
            .alarm(proto::AlarmRequest::default())
            .await
            .unwrap()
            .into_inner()
            .alarms
            .is_empty()
    );
    maintenance
        .defragment(proto::DefragmentRequest::default())
        .await
        .unwrap();
    assert_ne!(
        maintenance
            .hash(proto::HashRequest::default())
            .await
            .unwrap()
            .into_inner()
            .hash,
        0
    );
    assert_ne!(
        maintenance
            .hash_kv(proto::HashKvRequest::default())
            .await
            .unwrap()
            .into_inner()
            .hash,
        0
    );
    let mut snapshot = maintenance
        .snapshot(proto::SnapshotRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut size = 0;
    while let Some(part) = snapshot.next().await {
        size += part.unwrap().blob.len();
    }
    assert_eq!(size % 512, 32, "whole database pages and a checksum");
    let mut health = HealthClient::new(etcd.grpc());
    let checked = health
        .check(proto::health::HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        checked.status(),
        proto::health::health_check_response::ServingStatus::Serving
    );
}

#[tokio::test]
async fn auth_messages_round_trip() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut auth = AuthClient::new(etcd.grpc());
    auth.role_add(proto::AuthRoleAddRequest { name: "r".into() })
        .await
        .unwrap();
    let permission = proto::authpb::Permission {
        perm_type: proto::authpb::permission::Type::Readwrite.into(),
        key: "a".into(),
        range_end: "b".into(),
    };
    let grant = proto::AuthRoleGrantPermissionRequest {
        name: "r".into(),
        perm: Some(permission.clone()),
    };
    auth.role_grant_permission(grant).await.unwrap();
    let role = auth
        .role_get(proto::AuthRoleGetRequest { role: "r".into() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(role.perm, [permission]);
    let user = proto::AuthUserAddRequest {
        name: "u".into(),
        password: "p".into(),
        ..Default::default()
    };
    auth.user_add(user).await.unwrap();
    let role_grant = proto::AuthUserGrantRoleRequest {
        user: "u".into(),
        role: "r".into(),
    };
    auth.user_grant_role(role_grant).await.unwrap();
    let user = auth
        .user_get(proto::AuthUserGetRequest { name: "u".into() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(user.roles, ["r"]);
    assert_eq!(
        auth.user_list(proto::AuthUserListRequest {})
            .await
            .unwrap()
            .into_inner()
            .users,
        ["u"]
    );
    assert_eq!(
        auth.role_list(proto::AuthRoleListRequest {})
            .await
            .unwrap()
            .into_inner()
            .roles,
        ["r"]
    );
}

#[tokio::test]
async fn lock_and_election_messages_round_trip() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut leases = LeaseClient::new(etcd.grpc());
    let lease = leases
        .lease_grant(proto::LeaseGrantRequest { ttl: 60, id: 0 })
        .await
        .unwrap()
        .into_inner()
        .id;
    let mut locks = v3lockpb::lock_client::LockClient::new(etcd.grpc());
    let request = v3lockpb::LockRequest {
        name: "l".into(),
        lease,
    };
    let key = locks.lock(request).await.unwrap().into_inner().key;
    assert!(key.starts_with(b"l/"));
    locks.unlock(v3lockpb::UnlockRequest { key }).await.unwrap();

    let mut elections = v3electionpb::election_client::ElectionClient::new(etcd.grpc());
    let campaign = v3electionpb::CampaignRequest {
        name: "e".into(),
        lease,
        value: "me".into(),
    };
    let leader = elections
        .campaign(campaign)
        .await
        .unwrap()
        .into_inner()
        .leader;
    let leader_request = v3electionpb::LeaderRequest { name: "e".into() };
    assert_eq!(
        elections
            .leader(leader_request)
            .await
            .unwrap()
            .into_inner()
            .kv
            .unwrap()
            .value,
        "me"
    );
    elections
        .resign(v3electionpb::ResignRequest { leader })
        .await
        .unwrap();
}
