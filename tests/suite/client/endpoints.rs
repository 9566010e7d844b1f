//! Changes of the endpoints: by the caller, by `sync`, and in their connectivity.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind, balancer::ConnectivityState, proto};
use testbed::{Cluster, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio_stream::StreamExt;

use crate::support::{
    scripted_put::{PUT, put_reply},
    wait::until,
};

#[tokio::test]
async fn removed_endpoint_drains_before_closing() {
    let old = ScriptedServer::start().await;
    old.on(PUT, |_| put_reply().after(Duration::from_millis(300)));
    let new = ScriptedServer::start().await;
    let etcd = Client::connect([old.endpoint()]).await.unwrap();
    let slow = tokio::spawn(etcd.put("k", "v").into_future());
    until("the slow request has arrived", || old.count(PUT) == 1).await;
    etcd.set_endpoints([new.endpoint()]).await.unwrap();
    assert_eq!(etcd.endpoints(), [new.endpoint()]);
    slow.await.unwrap().expect("the request in flight succeeds");
    until("the old connection is closed", || old.connections() == 0).await;
    etcd.wait_ready(Duration::from_secs(5)).await.unwrap();
    assert_eq!(new.connections(), 1);

    assert_eq!(
        etcd.set_endpoints(Vec::<String>::new())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NoEndpoints
    );
    assert_eq!(
        etcd.set_endpoints(["nonsense://"])
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidEndpoint
    );
    assert_eq!(
        etcd.endpoints(),
        [new.endpoint()],
        "an invalid list must not change the endpoints"
    );
}

#[tokio::test]
async fn connectivity_changes_are_reported() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut changes = etcd.connectivity_changes().await.unwrap();
    cluster.member(0).kill();
    let failed = loop {
        let change = changes.next().await.unwrap();
        if change.state == ConnectivityState::TransientFailure {
            break change;
        }
    };
    assert_eq!(failed.endpoint, cluster.endpoints()[0]);
    assert!(failed.error.is_some());
    cluster.member(0).start().await;
    while changes.next().await.unwrap().state != ConnectivityState::Ready {}
    let status = etcd.connectivity().remove(0);
    assert_eq!(
        (status.state, status.is_leader, status.last_error.is_none()),
        (ConnectivityState::Ready, Some(true), true)
    );
    assert_eq!(status.member_id, Some(cluster.member(0).id()));
}

#[tokio::test]
async fn member_of_other_cluster_is_refused() {
    let (ours, theirs) = (Cluster::start(1).await, Cluster::start(1).await);
    let etcd = Client::connect(ours.endpoints()).await.unwrap();
    etcd.put("k", "ours").await.unwrap();
    let both = [ours.endpoints(), theirs.endpoints()].concat();
    etcd.set_endpoints(both).await.unwrap();
    until("the member of the other cluster is refused", || {
        etcd.connectivity()[1]
            .last_error
            .as_ref()
            .is_some_and(|error| error.kind() == ErrorKind::ClusterChanged)
    })
    .await;
    for _ in 0..20 {
        assert_eq!(etcd.get("k").await.unwrap().first().unwrap().value, "ours");
    }
}

#[tokio::test]
async fn sync_adopts_only_serving_members() {
    let cluster = Cluster::start(3).await;
    let seed = cluster.endpoints().remove(0);
    let etcd = Client::connect([seed.clone()]).await.unwrap();
    let learner = cluster.add_learner().await;
    cluster.member(2).client_link().set(testbed::Fault::Refuse);
    let mut adopted = etcd.sync().await.unwrap();
    adopted.sort();
    let mut serving = vec![
        cluster.endpoints()[0].clone(),
        cluster.endpoints()[1].clone(),
    ];
    serving.sort();
    assert_eq!(
        adopted, serving,
        "neither learner {learner} nor the unreachable member may be adopted"
    );

    cluster.member(2).client_link().heal();
    assert_eq!(etcd.sync().await.unwrap().len(), 3);
}

/// Starts a server whose member list has one member per client URL.
async fn start_listing(client_urls: Vec<String>) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on("/etcdserverpb.Cluster/MemberList", move |_| {
        let member = |(n, url): (usize, &String)| proto::Member {
            id: n as u64 + 1,
            name: format!("m{n}"),
            client_ur_ls: vec![url.clone()],
            ..Default::default()
        };
        Reply::message(&proto::MemberListResponse {
            header: Some(proto::ResponseHeader {
                cluster_id: 1,
                ..Default::default()
            }),
            members: client_urls.iter().enumerate().map(member).collect(),
        })
    });
    server
}

#[tokio::test]
async fn empty_member_list_is_not_adopted() {
    let server = start_listing(Vec::new()).await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [server.endpoint()]);
    assert_eq!(etcd.endpoints(), [server.endpoint()]);
    assert_eq!(server.accepted(), 1, "the connection must be kept");
}

#[tokio::test]
async fn members_of_other_cluster_are_not_adopted() {
    let (foreign, own) = (ScriptedServer::start().await, ScriptedServer::start().await);
    foreign.on(STATUS, |_| {
        let mut status = StatusResponse::healthy();
        status.header.as_mut().unwrap().cluster_id = 2;
        Reply::message(&status)
    });
    let seed = start_listing(vec![foreign.endpoint()]).await;
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [seed.endpoint()]);
    assert!(
        foreign.count(STATUS) > 0,
        "the foreign member must be probed"
    );

    let seed = start_listing(vec![foreign.endpoint(), own.endpoint()]).await;
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [own.endpoint()]);
    until("the foreign member is disconnected", || {
        foreign.connections() == 0
    })
    .await;
}

#[tokio::test]
async fn configured_endpoints_remain_as_fallback() {
    let cluster = Cluster::start(3).await;
    let endpoints = cluster.endpoints();
    let etcd = Client::builder([endpoints[0].clone()])
        .auto_sync(Duration::from_millis(200))
        .request_timeout(Duration::from_millis(400))
        .connect_lazy()
        .await
        .unwrap();
    until("all members are known", || etcd.endpoints().len() == 3).await;
    cluster.remove_member(0).await;
    until("the removed member is left out", || {
        etcd.endpoints().len() == 2
    })
    .await;
    for index in [1, 2] {
        cluster
            .member(index)
            .client_link()
            .set(testbed::Fault::Refuse);
    }
    until("the seed is tried again", || {
        etcd.endpoints().contains(&endpoints[0])
    })
    .await;
    cluster.heal();
    until("the members are back", || etcd.endpoints().len() == 2).await;
    etcd.put("k", "v")
        .timeout(Duration::from_secs(20))
        .await
        .unwrap();
}
