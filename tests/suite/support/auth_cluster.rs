//! Clusters with users, and what scripted members say of tokens: the scene of every test of authentication.

use actix_etcd::{Client, Error, proto};
use testbed::{Cluster, ClusterBuilder, Reply, ScriptedServer, Tokens};
use tokio::task::JoinHandle;

pub const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub const PUT: &str = "/etcdserverpb.KV/Put";

/// Starts a cluster on which authentication is on: `root`, whose password is `secret`.
pub async fn secured(builder: ClusterBuilder) -> Cluster {
    let cluster = builder.start().await;
    cluster.enable_auth("root", "secret").await;
    cluster
}

/// One member, with tokens of this kind.
pub async fn with_tokens(tokens: Tokens) -> Cluster {
    secured(Cluster::builder().tokens(tokens)).await
}

/// A client that is this user.
pub async fn user(cluster: &Cluster, name: &str, password: &str) -> Client {
    let builder = Client::builder(cluster.endpoints()).credentials(name, password);
    builder.connect().await.unwrap()
}

pub async fn root(cluster: &Cluster) -> Client {
    user(cluster, "root", "secret").await
}

/// A client that is Ann, of a scripted member.
pub async fn ann(server: &ScriptedServer) -> Client {
    let builder = Client::builder([server.endpoint()]).credentials("ann", "word");
    builder.connect().await.unwrap()
}

/// How many logins the members have seen, those of the testbed among them.
pub async fn logins(cluster: &Cluster) -> u64 {
    handled(cluster, r#"grpc_method="Authenticate",grpc_code="OK""#).await
}

/// How many requests the members have answered that have these labels.
pub async fn handled(cluster: &Cluster, labels: &str) -> u64 {
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

/// Puts that many keys at once, each on a task of its own.
pub fn puts(etcd: &Client, count: usize) -> Vec<JoinHandle<Result<(), Error>>> {
    (0..count)
        .map(|n| {
            let etcd = etcd.clone();
            tokio::spawn(async move { etcd.put(format!("k/{n}"), "v").await.map(drop) })
        })
        .collect()
}

pub async fn all_succeed(puts: Vec<JoinHandle<Result<(), Error>>>) {
    for put in puts {
        put.await.unwrap().unwrap();
    }
}

/// The answer to a login.
pub fn token(token: &str) -> Reply {
    Reply::message(&proto::AuthenticateResponse {
        header: Some(proto::ResponseHeader::default()),
        token: token.to_owned(),
    })
}

/// The answer to a put.
pub fn written() -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(proto::ResponseHeader::default()),
        prev_kv: None,
    })
}

pub fn no_user() -> Reply {
    Reply::status(3, "etcdserver: user name is empty")
}

pub fn token_refused() -> Reply {
    Reply::status(16, "etcdserver: invalid auth token")
}
