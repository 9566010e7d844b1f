//! Tokens that end under what the client does not try again by itself: streams of answers, and tonic's own clients.

use actix_etcd::proto::{
    PutRequest, ResponseHeader, kv_client::KvClient, v3electionpb::LeaderResponse,
};
use testbed::{Call, Reply, ScriptedServer};

use crate::support::auth_cluster::{
    AUTHENTICATE, PUT, ann, no_user, token, token_refused, written,
};

const OBSERVE: &str = "/v3electionpb.Election/Observe";

/// A server that has forgotten the first token.
async fn server() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| token(&format!("token-{}", call.nth)));
    server
}

fn forgetful(call: &Call, good: Reply) -> Reply {
    match call.metadata.get("token") {
        None => no_user(),
        Some(token) if token == "token-0" => token_refused(),
        Some(_) => good,
    }
}

#[tokio::test]
async fn who_observes_an_election_does_not_notice_that_its_token_was_too_old() {
    let server = server().await;
    server.on(OBSERVE, |call| {
        let answers = Reply::streaming(|mut sender, _| async move {
            let answer = LeaderResponse {
                header: Some(ResponseHeader::default()),
                kv: None,
            };
            let _ = sender.send(&answer).await;
            sender.closed().await;
        });
        forgetful(&call, answers)
    });
    let etcd = ann(&server).await;
    let mut observed = etcd.server_elections().observe("seat").await.unwrap();
    observed.next().await.unwrap().unwrap();
    assert_eq!(server.count(AUTHENTICATE), 2);
    assert_eq!(server.count(OBSERVE), 2);
}

#[tokio::test]
async fn a_stream_whose_token_is_refused_again_and_again_says_so() {
    let server = server().await;
    server.on(OBSERVE, |_| token_refused());
    let etcd = ann(&server).await;
    let mut observed = etcd.server_elections().observe("seat").await.unwrap();
    let refused = observed.next().await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("token"), "{refused}");
    assert!(observed.next().await.is_none());
    assert!(server.count(OBSERVE) < 10);
}

#[tokio::test]
async fn a_raw_call_whose_token_is_refused_fails_and_the_next_one_has_a_new_token() {
    let server = server().await;
    server.on(PUT, |call| forgetful(&call, written()));
    let etcd = ann(&server).await;
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
async fn a_raw_call_of_a_lazy_client_is_the_one_that_logs_in() {
    let server = server().await;
    server.on(PUT, |call| match call.metadata.get("token") {
        None => no_user(),
        Some(_) => written(),
    });
    let etcd = actix_etcd::Client::builder([server.endpoint()])
        .auth("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    let mut raw = KvClient::new(etcd.grpc());
    raw.put(PutRequest::default()).await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 1);
}
