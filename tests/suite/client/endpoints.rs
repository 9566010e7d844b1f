//! Endpoints that change under a client.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind, balancer::ConnectivityState, proto};
use testbed::{Cluster, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio_stream::StreamExt;

use crate::support::wait::until;

#[tokio::test]
async fn removed_endpoints_drain_and_new_ones_are_used() {
    let old = ScriptedServer::start().await;
    old.on("/etcdserverpb.KV/Put", |_| {
        Reply::message(&actix_etcd::proto::PutResponse {
            header: Some(actix_etcd::proto::ResponseHeader::default()),
            ..Default::default()
        })
        .after(Duration::from_millis(300))
    });
    let new = ScriptedServer::start().await;
    let etcd = Client::connect([old.endpoint()]).await.unwrap();
    let slow = tokio::spawn(etcd.put("k", "v").into_future());
    until("the slow request is there", || {
        old.count("/etcdserverpb.KV/Put") == 1
    })
    .await;
    etcd.set_endpoints([new.endpoint()]).await.unwrap();
    assert_eq!(etcd.endpoints(), [new.endpoint()]);
    slow.await.unwrap().expect("what is in flight finishes");
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
        "a bad list changes nothing"
    );
}

#[tokio::test]
async fn changes_of_connectivity_are_told() {
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
async fn a_member_of_another_cluster_is_refused_with_the_reason() {
    let (ours, theirs) = (Cluster::start(1).await, Cluster::start(1).await);
    let etcd = Client::connect(ours.endpoints()).await.unwrap();
    etcd.put("k", "ours").await.unwrap();
    let both = [ours.endpoints(), theirs.endpoints()].concat();
    etcd.set_endpoints(both).await.unwrap();
    until("the stranger is refused", || {
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
async fn sync_adopts_what_serves_and_leaves_out_what_does_not() {
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
        "neither the learner {learner} nor the member that does not answer"
    );

    cluster.member(2).client_link().heal();
    assert_eq!(etcd.sync().await.unwrap().len(), 3);
}

/// A server whose cluster has these members, each with one address.
async fn listing(members: Vec<String>) -> ScriptedServer {
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
            members: members.iter().enumerate().map(member).collect(),
        })
    });
    server
}

#[tokio::test]
async fn a_list_that_is_empty_is_never_adopted() {
    let server = listing(Vec::new()).await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [server.endpoint()]);
    assert_eq!(etcd.endpoints(), [server.endpoint()]);
    assert_eq!(server.accepted(), 1, "its connection was kept");
}

#[tokio::test]
async fn members_that_answer_for_another_cluster_are_never_adopted() {
    let (stranger, friend) = (ScriptedServer::start().await, ScriptedServer::start().await);
    stranger.on(STATUS, |_| {
        let mut status = StatusResponse::healthy();
        status.header.as_mut().unwrap().cluster_id = 2;
        Reply::message(&status)
    });
    let seed = listing(vec![stranger.endpoint()]).await;
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [seed.endpoint()]);
    assert!(stranger.count(STATUS) > 0, "it was asked");

    let seed = listing(vec![stranger.endpoint(), friend.endpoint()]).await;
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [friend.endpoint()]);
    until("the stranger is left", || stranger.connections() == 0).await;
}

#[tokio::test]
async fn the_given_endpoints_stay_as_a_fallback() {
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
