//! Puts and reads on a scripted server.

use std::time::Duration;

use actix_etcd::{Client, Error, proto};
use testbed::{Call, Reply, ScriptedServer};

pub const PUT: &str = "/etcdserverpb.KV/Put";
pub const RANGE: &str = "/etcdserverpb.KV/Range";

/// Starts a server that replies to puts by the script, and connects a client to it.
pub async fn start_scripted(
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

/// Reply to a successful put.
pub fn put_reply() -> Reply {
    Reply::message(&proto::PutResponse {
        header: Some(proto::ResponseHeader::default()),
        ..Default::default()
    })
}

/// Reply to a read that finds no key.
pub fn range_reply() -> Reply {
    Reply::message(&proto::RangeResponse {
        header: Some(proto::ResponseHeader::default()),
        ..Default::default()
    })
}

/// Sends one put and returns its result and all requests that the server received.
pub async fn put_with_script(
    script: impl Fn(Call) -> Reply + Send + Sync + 'static,
) -> (Result<(), Error>, Vec<Call>) {
    let (server, client) = start_scripted(script).await;
    let result = client.put("k", "v").await.map(drop);
    (result, server.calls(PUT))
}
