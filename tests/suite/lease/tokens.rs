//! Kept leases whose tokens end.

use std::time::Duration;

use actix_etcd::{Client, proto};
use testbed::{Cluster, Reply, Tokens};

use crate::support::{
    auth_cluster::login_count,
    lease_record::Recorder,
    lease_server::{Lessor, TTL},
    wait::{until, until_async},
};

#[tokio::test]
async fn a_kept_lease_outlives_its_tokens_while_its_streams_break() {
    let tokens = Tokens::Jwt(Duration::from_secs(2));
    let cluster = Cluster::builder().members(3).tokens(tokens).start().await;
    cluster.enable_auth("root", "secret").await;
    let builder = Client::builder(cluster.endpoints()).auth("root", "secret");
    let etcd = builder.connect().await.unwrap();
    let lease = etcd
        .lease(Duration::from_secs(3))
        .keep_alive()
        .await
        .unwrap();
    let recorder = Recorder::start(&lease, None);
    for _ in 0..4 {
        let before = login_count(&cluster).await;
        // Whoever uses a token finds out that it has ended.
        until_async("a new token", async || {
            etcd.get("k").await.unwrap();
            login_count(&cluster).await > before
        })
        .await;
        for member in cluster.members() {
            member.client_link().reset_now();
        }
    }
    recorder.check_alive().await;
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
}

#[tokio::test]
async fn a_stream_whose_token_is_refused_is_opened_again_with_a_new_one() {
    let lessor = Lessor::start().await;
    lessor.server.on("/etcdserverpb.Auth/Authenticate", |call| {
        Reply::message(&proto::AuthenticateResponse {
            header: Some(proto::ResponseHeader::default()),
            token: format!("token-{}", call.nth),
        })
    });
    // The first token is one the member does not know, though it answers everything else.
    lessor.on_keepalive_stream(|call, serve| {
        let token = call.metadata.get("token").unwrap().to_str().unwrap();
        if token == "token-0" {
            Reply::status(16, "etcdserver: invalid auth token")
        } else {
            serve
        }
    });
    let builder = Client::builder([lessor.server.endpoint()]).auth("root", "secret");
    let etcd = builder.connect().await.unwrap();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    let recorder = Recorder::start(&lease, None);
    until("it is kept with the new token", || {
        lessor.count(lease.id()) > 3
    })
    .await;
    recorder.check_alive().await;
}
