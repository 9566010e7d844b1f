//! Clusters with authentication enabled, clients with credentials, and scripted replies about tokens.

use std::time::Duration;

use actix_etcd::{Client, Error, client::Liveness, proto};
use testbed::{Cluster, ClusterBuilder, Reply, ScriptedServer, Tokens};
use tokio::task::JoinHandle;

pub const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Starts a cluster and enables authentication for user `root` with password `secret`.
pub async fn start_with_auth(builder: ClusterBuilder) -> Cluster {
    let cluster = builder.start().await;
    cluster.enable_auth("root", "secret").await;
    cluster
}

/// Starts one member with authentication enabled and tokens of this kind.
pub async fn start_with_tokens(tokens: Tokens) -> Cluster {
    start_with_auth(Cluster::builder().tokens(tokens)).await
}

/// Connects to a cluster as this user.
pub async fn connect_as(cluster: &Cluster, name: &str, password: &str) -> Client {
    let builder = Client::builder(cluster.endpoints()).credentials(name, password);
    builder.connect().await.unwrap()
}

/// Connects as this user so that tokens expire beside open watches: the usual probes of members with streams use the
/// token, and a simple token that is used does not expire.
pub async fn connect_with_rare_probes(cluster: &Cluster, name: &str, password: &str) -> Client {
    let builder = Client::builder(cluster.endpoints()).credentials(name, password);
    builder.liveness(rare_probes()).connect().await.unwrap()
}

pub fn rare_probes() -> Liveness {
    Liveness::default().check_streams_every(Duration::from_secs(60))
}

pub async fn connect_as_root(cluster: &Cluster) -> Client {
    connect_as(cluster, "root", "secret").await
}

/// Connects to a scripted server as user `ann`.
pub async fn connect_as_ann(server: &ScriptedServer) -> Client {
    let builder = Client::builder([server.endpoint()]).credentials("ann", "word");
    builder.connect().await.unwrap()
}

/// Returns the number of successful logins at all members, including those of the testbed.
pub async fn login_count(cluster: &Cluster) -> u64 {
    handled_count(cluster, r#"grpc_method="Authenticate",grpc_code="OK""#).await
}

/// Returns the number of requests with these metric labels that all members have handled.
pub async fn handled_count(cluster: &Cluster, labels: &str) -> u64 {
    let mut sum = 0.0;
    for member in cluster.members() {
        let name = format!("grpc_server_handled_total{{{labels}}}");
        sum += member.metric(&name).await.unwrap_or_default();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count"
    )]
    let count = sum as u64;
    count
}

/// Spawns this many tasks that put one key each.
pub fn spawn_puts(etcd: &Client, count: usize) -> Vec<JoinHandle<Result<(), Error>>> {
    (0..count)
        .map(|n| {
            let etcd = etcd.clone();
            tokio::spawn(async move { etcd.put(format!("k/{n}"), "v").await.map(drop) })
        })
        .collect()
}

pub async fn assert_all_succeed(puts: Vec<JoinHandle<Result<(), Error>>>) {
    for put in puts {
        put.await.unwrap().unwrap();
    }
}

/// Reply to a successful login.
pub fn login_reply(token: &str) -> Reply {
    Reply::message(&proto::AuthenticateResponse {
        header: Some(proto::ResponseHeader::default()),
        token: token.to_owned(),
    })
}

/// Reply to a request without a token.
pub fn missing_token_reply() -> Reply {
    Reply::status(3, "etcdserver: user name is empty")
}

/// Reply to a request with an expired or unknown token.
pub fn invalid_token_reply() -> Reply {
    Reply::status(16, "etcdserver: invalid auth token")
}
