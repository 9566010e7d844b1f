//! A put against a script, and what its caller is told.

use std::time::Duration;

use actix_etcd::{Client, Error, proto};
use testbed::{Call, Reply, ScriptedServer};

pub const PUT: &str = "/etcdserverpb.KV/Put";
pub const RANGE: &str = "/etcdserverpb.KV/Range";

/// A server that answers puts by the script, and a client of it.
pub async fn scripted(
    script: impl Fn(Call) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, Client) {
    let server = ScriptedServer::start().await;
    server.on(PUT, script);
    let client = Client::builder([server.endpoint()])
        .request_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    (server, client)
}

/// A put that was done.
pub fn done() -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(proto::ResponseHeader::default()),
        ..Default::default()
    })
}

/// What a put is told, and each time it was sent.
pub async fn told(
    script: impl Fn(Call) -> Reply + Send + Sync + 'static,
) -> (Result<(), Error>, Vec<Call>) {
    let (server, client) = scripted(script).await;
    let result = client.put("k", "v").await.map(drop);
    (result, server.calls(PUT))
}
