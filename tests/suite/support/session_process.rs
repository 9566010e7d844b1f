//! A node process that keeps a self-healing session with keys.

use std::time::Duration;

use actix_etcd::Client;

use crate::support::{
    node_process::{EventKind, NodePhase, NodeTask, report},
    session_keys::{KeyCheck, KeyLeases, SessionKeys},
};

pub const TTL: Duration = Duration::from_secs(4);

/// Returns the prefix of a node's keys.
pub fn prefix_of(node: &str) -> String {
    format!("s/{node}/")
}

async fn read_keys(etcd: &Client, prefix: &str) -> Option<KeyLeases> {
    let found = etcd.get(prefix.to_owned()).prefix().await.ok()?;
    let key_and_lease = |kv: &actix_etcd::proto::KeyValue| {
        let key = String::from_utf8(kv.key.to_vec()).unwrap();
        (key, kv.lease)
    };
    Some(found.kvs.iter().map(key_and_lease).collect())
}

/// In a process that [`NodeProcess::start`](super::node_process::NodeProcess::start) has started: runs a node until the
/// parent closes the standard input, then returns `true`. In any other process: returns `false` at once.
pub fn run_as_node() -> bool {
    let Some(node) = NodeTask::of_this_process() else {
        return false;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(keep_keys(node));
    true
}

async fn keep_keys(mut node: NodeTask) {
    let etcd = Client::connect(&node.endpoints).await.unwrap();
    let prefix = prefix_of(&std::process::id().to_string());
    let keys = SessionKeys::open(&etcd, TTL, &prefix).await;
    while node.is_in(NodePhase::Work) {
        let lease = keys.session.lease().unwrap_or_default();
        match keys.check(async || read_keys(&etcd, &prefix).await).await {
            KeyCheck::Present => report(EventKind::KeysPresent, lease),
            KeyCheck::NotUp => {}
            KeyCheck::Missing(found) => {
                eprintln!("session with lease {lease} is up, but only {found:?} exist");
                report(EventKind::KeysMissing, lease);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.idle_until_end().await;
    keys.session.close().await.unwrap();
    etcd.shutdown().await;
}
