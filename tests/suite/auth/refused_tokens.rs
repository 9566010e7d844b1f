//! Refused tokens on response streams and on raw gRPC clients, which have their own retry rules.

use actix_etcd::proto::{
    PutRequest, ResponseHeader, kv_client::KvClient, v3electionpb::LeaderResponse,
};
use testbed::{Call, Reply, ScriptedServer};

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, connect_as_ann, invalid_token_reply, login_reply, missing_token_reply,
    },
    scripted_put::{PUT, put_reply},
};

const OBSERVE: &str = "/v3electionpb.Election/Observe";

/// Starts a server that issues numbered tokens.
async fn start_server() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        login_reply(&format!("token-{}", call.nth))
    });
    server
}

/// Refuses the first token and replies with `success` to all others.
fn refuse_first_token(call: &Call, success: Reply) -> Reply {
    match call.metadata.get("token") {
        None => missing_token_reply(),
        Some(token) if token == "token-0" => invalid_token_reply(),
        Some(_) => success,
    }
}

#[tokio::test]
async fn stream_is_reopened_with_new_token() {
    let server = start_server().await;
    server.on(OBSERVE, |call| {
        let responses = Reply::streaming(|mut sender, _| async move {
            let response = LeaderResponse {
                header: Some(ResponseHeader::default()),
                kv: None,
            };
            let _ = sender.send(&response).await;
            sender.closed().await;
        });
        refuse_first_token(&call, responses)
    });
    let etcd = connect_as_ann(&server).await;
    let mut observed = etcd.server_elections().observe("seat").await.unwrap();
    observed.next().await.unwrap().unwrap();
    assert_eq!(server.count(AUTHENTICATE), 2);
    assert_eq!(server.count(OBSERVE), 2);
}

#[tokio::test]
async fn stream_fails_after_repeated_token_refusals() {
    let server = start_server().await;
    server.on(OBSERVE, |_| invalid_token_reply());
    let etcd = connect_as_ann(&server).await;
    let mut observed = etcd.server_elections().observe("seat").await.unwrap();
    let refused = observed.next().await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("token"), "{refused}");
    assert!(observed.next().await.is_none());
    assert!(server.count(OBSERVE) < 10);
}

#[tokio::test]
async fn raw_call_after_refused_token_succeeds() {
    let server = start_server().await;
    server.on(PUT, |call| refuse_first_token(&call, put_reply()));
    let etcd = connect_as_ann(&server).await;
    let mut raw = KvClient::new(etcd.grpc());
    let refused = raw.put(PutRequest::default()).await.unwrap_err();
    assert!(
        refused.message().contains("invalid auth token"),
        "{refused}"
    );
    raw.put(PutRequest::default()).await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 2);
}

#[tokio::test]
async fn raw_call_of_lazy_client_logs_in() {
    let server = start_server().await;
    server.on(PUT, |call| match call.metadata.get("token") {
        None => missing_token_reply(),
        Some(_) => put_reply(),
    });
    let etcd = actix_etcd::Client::builder([server.endpoint()])
        .credentials("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    let mut raw = KvClient::new(etcd.grpc());
    raw.put(PutRequest::default()).await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 1);
}
