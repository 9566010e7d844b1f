//! Kept leases whose auth tokens expire or are rejected.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Cluster, Tokens};

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, connect_as_root, invalid_token_reply, login_count, login_reply,
        start_with_auth,
    },
    lease_recorder::LeaseRecorder,
    lease_server::{LeaseServer, TTL},
    wait::{until, until_async},
};

#[tokio::test]
async fn kept_lease_survives_token_expiry_and_resets() {
    let tokens = Tokens::Jwt(Duration::from_secs(2));
    let cluster = start_with_auth(Cluster::builder().members(3).tokens(tokens)).await;
    let etcd = connect_as_root(&cluster).await;
    let lease = etcd
        .lease(Duration::from_secs(3))
        .keep_alive()
        .await
        .unwrap();
    let recorder = LeaseRecorder::start(&lease, None);
    for _ in 0..4 {
        let before = login_count(&cluster).await;
        // A request with the expired token triggers the login.
        until_async("the client has logged in again", async || {
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
async fn keepalive_stream_is_reopened_after_token_rejection() {
    let lease_server = LeaseServer::start().await;
    lease_server.server.on(AUTHENTICATE, |call| {
        login_reply(&format!("token-{}", call.nth))
    });
    // Only keepalive streams reject the first token.
    lease_server.on_keepalive_stream(|call, served| {
        let token = call.metadata.get("token").unwrap().to_str().unwrap();
        if token == "token-0" {
            invalid_token_reply()
        } else {
            served
        }
    });
    let builder = Client::builder([lease_server.server.endpoint()]).credentials("root", "secret");
    let etcd = builder.connect().await.unwrap();
    let lease = etcd.lease(TTL).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, None);
    until("keepalives arrive with the new token", || {
        lease_server.keepalive_count(lease.id()) > 3
    })
    .await;
    recorder.check_alive().await;
}
