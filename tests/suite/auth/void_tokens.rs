//! Tokens that no login can replace: every request fails with the reason, within its timeout.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind,
    recipes::{election::LeaderEvent, session::Session},
};
use serde_json::json;
use testbed::{Cluster, Tokens};
use tokio::time::timeout;

use crate::support::{
    auth_cluster::{connect_as_root, start_with_auth, start_with_tokens},
    wait::{TEST_TIMEOUT, until_async},
};

const LONG_TTL: Duration = Duration::from_secs(120);

/// Asserts that recipes and leases fail with this kind.
async fn assert_all_fail(etcd: &Client, session: &Session, kind: ErrorKind) {
    let locked = timeout(TEST_TIMEOUT, session.mutex("door").lock()).await;
    let locked = locked.expect("the lock waits for ever");
    assert_eq!(locked.unwrap_err().kind(), kind);
    let elected = timeout(TEST_TIMEOUT, session.election("seat").campaign("me")).await;
    let elected = elected.expect("the campaign waits for ever");
    assert_eq!(elected.unwrap_err().kind(), kind);
    let mut leaders = etcd.leaders("seat");
    let observed = timeout(TEST_TIMEOUT, leaders.next()).await;
    match observed.expect("the observer waits for ever") {
        Some(LeaderEvent::Ended(error)) => assert_eq!(error.kind(), kind),
        other => panic!("unexpected event: {other:?}"),
    }
    let renewed = timeout(
        TEST_TIMEOUT,
        etcd.keep_alive_once(session.lease().unwrap()).into_future(),
    )
    .await;
    let renewed = renewed.expect("the keepalive waits for ever");
    assert_eq!(renewed.unwrap_err().kind(), kind);
    assert_eq!(etcd.put("k", "v").await.unwrap_err().kind(), kind);
}

#[tokio::test]
async fn expired_external_token_fails_every_request() {
    let cluster = start_with_tokens(Tokens::Jwt(Duration::from_secs(3))).await;
    let login = json!({"name": "root", "password": "secret"});
    let login = cluster.api(0, "/v3/auth/authenticate", login).await;
    let jwt = login.unwrap()["token"].as_str().unwrap().to_owned();
    let builder = Client::builder(cluster.endpoints()).token(jwt);
    let etcd = builder.connect().await.unwrap();
    let session = etcd.session(LONG_TTL).await.unwrap();
    until_async("the token expires", async || etcd.get("k").await.is_err()).await;
    assert_all_fail(&etcd, &session, ErrorKind::InvalidAuthToken).await;
}

#[tokio::test]
async fn deleted_user_fails_every_request() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let root = connect_as_root(&cluster).await;
    root.users().add("ann", "word").await.unwrap();
    root.users().grant_role("ann", "root").await.unwrap();
    let builder = Client::builder(cluster.endpoints()).credentials("ann", "word");
    let etcd = builder.connect().await.unwrap();
    let session = etcd.session(LONG_TTL).await.unwrap();
    root.users().delete("ann").await.unwrap();
    assert_all_fail(&etcd, &session, ErrorKind::AuthFailed).await;
}

#[tokio::test]
async fn keepalive_without_credentials_fails_at_once() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let root = connect_as_root(&cluster).await;
    let lease = root.lease(LONG_TTL).await.unwrap();
    let anonymous = Client::builder(cluster.endpoints())
        .request_timeout(TEST_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let renewed = timeout(
        TEST_TIMEOUT / 2,
        anonymous.keep_alive_once(lease.id()).into_future(),
    )
    .await;
    let refused = renewed.expect("the keepalive waits for its deadline");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::UserEmpty);
}
