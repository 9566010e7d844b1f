//! Logging in, and staying so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Credentials, ErrorKind, Outcome, proto};
use serde_json::json;
use testbed::{Cluster, Reply, ScriptedServer, Tokens};
use tokio::time::{Instant, sleep};

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const PUT: &str = "/etcdserverpb.KV/Put";

/// How many logins the members have seen, those of the testbed among them.
pub async fn logins(cluster: &Cluster) -> f64 {
    let mut sum = 0.0;
    for member in cluster.members() {
        sum += member
            .metric(r#"grpc_server_handled_total{grpc_method="Authenticate",grpc_code="OK"}"#)
            .await
            .unwrap_or_default();
    }
    sum
}

#[tokio::test]
async fn a_user_reads_and_writes_what_it_may_and_nothing_else() {
    let cluster = Cluster::start(3).await;
    cluster.enable_auth("root", "secret").await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let etcd = Client::builder(cluster.endpoints())
        .auth("ann", "word")
        .connect()
        .await
        .unwrap();
    etcd.put("a/k", "v").await.unwrap();
    let denied = etcd.put("b/k", "v").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    assert_eq!(denied.outcome(), Outcome::Rejected);
    let stranger = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = stranger.get("a/k").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UserEmpty);
}

#[tokio::test]
async fn a_wrong_password_is_told_at_connect_and_never_shown() {
    let cluster = Cluster::start(1).await;
    cluster.enable_auth("root", "secret").await;
    let builder = Client::builder(cluster.endpoints()).auth("root", "swordfish");
    assert!(!format!("{builder:?}").contains("swordfish"));
    let refused = builder.connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AuthFailed);
    assert!(!format!("{refused} {refused:?}").contains("swordfish"));
}

#[tokio::test]
async fn a_lazy_client_logs_in_before_its_first_request() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |_| token("first"));
    server.on(PUT, |_| written());
    let etcd = Client::builder([server.endpoint()])
        .auth("ann", "word")
        .connect_lazy()
        .await
        .unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 1);
    let put = &server.calls(PUT)[0];
    assert_eq!(put.metadata["token"], "first");
    assert!(
        !server.calls(AUTHENTICATE)[0].metadata.contains_key("token"),
        "a login carries no token"
    );
}

#[tokio::test]
async fn a_hundred_refused_calls_cause_one_login_and_none_goes_without_token() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        token(&format!("token-{}", call.nth)).after(Duration::from_millis(50))
    });
    server.on(PUT, |call| match call.metadata.get("token") {
        None => Reply::status(3, "etcdserver: user name is empty"),
        Some(token) if token == "token-0" => Reply::status(16, "etcdserver: invalid auth token"),
        Some(_) => written(),
    });
    let etcd = Client::builder([server.endpoint()])
        .auth("ann", "word")
        .connect()
        .await
        .unwrap();
    let puts: Vec<_> = (0..100)
        .map(|n| {
            let etcd = etcd.clone();
            tokio::spawn(async move { etcd.put(format!("k{n}"), "v").await })
        })
        .collect();
    for put in puts {
        put.await.unwrap().unwrap();
    }
    assert_eq!(server.count(AUTHENTICATE), 2);
    assert!(
        server
            .calls(PUT)
            .iter()
            .all(|call| call.metadata.contains_key("token"))
    );
}

#[tokio::test]
async fn a_client_with_credentials_serves_a_cluster_that_wants_none_and_notices_when_it_does() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::builder(cluster.endpoints())
        .auth("root", "secret")
        .connect()
        .await
        .unwrap();
    etcd.put("k", "before").await.unwrap();
    cluster.enable_auth("root", "secret").await;
    etcd.put("k", "after").await.unwrap();
    cluster.ask_any("/v3/auth/disable", json!({})).await;
    etcd.put("k", "at last").await.unwrap();
}

#[tokio::test]
async fn a_change_of_users_renews_the_token() {
    let cluster = Cluster::builder()
        .tokens(Tokens::Jwt(Duration::from_secs(60)))
        .start()
        .await;
    cluster.enable_auth("root", "secret").await;
    let etcd = Client::builder(cluster.endpoints())
        .auth("root", "secret")
        .connect()
        .await
        .unwrap();
    for round in 0..3 {
        cluster
            .add_user(&format!("user-{round}"), "word", None)
            .await;
        etcd.put("k", "v").await.unwrap();
    }
}

#[tokio::test]
async fn a_token_made_elsewhere_is_used_and_its_end_is_told() {
    let cluster = Cluster::builder()
        .tokens(Tokens::Jwt(Duration::from_secs(2)))
        .start()
        .await;
    cluster.enable_auth("root", "secret").await;
    let login = json!({"name": "root", "password": "secret"});
    let login = cluster
        .api(0, "/v3/auth/authenticate", login)
        .await
        .unwrap();
    let jwt = login["token"].as_str().unwrap();
    let builder = Client::builder(cluster.endpoints()).token(jwt);
    assert!(!format!("{builder:?}").contains(jwt));
    let etcd = builder.connect().await.unwrap();
    etcd.put("k", "v").await.unwrap();
    let started = Instant::now();
    let ended = loop {
        match etcd.get("k").await {
            Ok(_) => sleep(Duration::from_millis(100)).await,
            Err(error) => break error,
        }
        assert!(started.elapsed() < Duration::from_secs(20), "it never ends");
    };
    assert_eq!(ended.kind(), ErrorKind::InvalidAuthToken);
    assert!(!format!("{ended} {ended:?}").contains(jwt));
}

#[tokio::test]
async fn a_provider_is_asked_at_each_login_so_passwords_may_rotate() {
    let cluster = Cluster::builder()
        .tokens(Tokens::Jwt(Duration::from_secs(60)))
        .start()
        .await;
    cluster.enable_auth("root", "secret").await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let etcd = Client::builder(cluster.endpoints())
        .auth_provider(move || {
            let password = match counter.fetch_add(1, Ordering::SeqCst) {
                0 => "secret",
                _ => "rotated",
            };
            async move { Ok::<_, std::io::Error>(Credentials::password("root", password)) }
        })
        .connect()
        .await
        .unwrap();
    let change = json!({"name": "root", "password": "rotated"});
    cluster.ask_any("/v3/auth/user/changepw", change).await;
    etcd.put("k", "v").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_provider_that_fails_is_told_as_such() {
    let server = ScriptedServer::start().await;
    let refused = Client::builder([server.endpoint()])
        .auth_provider(|| async { Err(std::io::Error::other("the vault is sealed")) })
        .connect()
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CredentialsUnavailable);
    assert!(refused.to_string().contains("the vault is sealed"));
}

#[tokio::test]
async fn endpoints_that_lead_to_another_cluster_are_told_with_both_ids() {
    let first = Cluster::start(1).await;
    first.enable_auth("root", "secret").await;
    let second = Cluster::start(1).await;
    second.enable_auth("root", "secret").await;
    let etcd = Client::builder(first.endpoints())
        .auth("root", "secret")
        .connect()
        .await
        .unwrap();
    let known = etcd.put("k", "v").await.unwrap().header.cluster_id;
    let before = logins(&second).await;
    etcd.set_endpoints(second.endpoints()).await.unwrap();
    let refused = etcd.get("k").await.unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.kind(), ErrorKind::ClusterChanged, "{text}");
    assert!(text.contains(&format!("{known:x}")), "{text}");
    assert!(logins(&second).await - before <= 1.0);
}

fn token(token: &str) -> Reply {
    Reply::message(&proto::AuthenticateResponse {
        header: Some(proto::ResponseHeader::default()),
        token: token.to_owned(),
    })
}

fn written() -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(proto::ResponseHeader::default()),
        prev_kv: None,
    })
}
