//! Tasks that wait in a lock queue.

use actix_etcd::Client;
use tokio::task::JoinHandle;

use crate::support::wait::until_async;

/// Returns the number of keys with this prefix.
pub async fn key_count(etcd: &Client, prefix: &str) -> i64 {
    etcd.get(prefix).prefix().await.unwrap().count
}

/// Waits until there are this many keys with the prefix.
pub async fn until_key_count(etcd: &Client, prefix: &str, count: i64) {
    until_async(&format!("{count} keys are under {prefix}"), async || {
        key_count(etcd, prefix).await == count
    })
    .await;
}

/// Returns the names of the keys with this prefix.
pub async fn key_names(etcd: &Client, prefix: &str) -> Vec<String> {
    let found = etcd.get(prefix).prefix().keys_only().await.unwrap();
    let name = |kv: &actix_etcd::kv::KeyValue| String::from_utf8_lossy(&kv.key).into_owned();
    found.kvs.iter().map(name).collect()
}

/// Spawns a task that joins a queue under `prefix`. Returns when one more key is in the queue.
pub async fn spawn_in_queue<T: Send + 'static>(
    etcd: &Client,
    prefix: &str,
    work: impl IntoFuture<IntoFuture: Send + 'static, Output = T>,
) -> JoinHandle<T> {
    let before = key_count(etcd, prefix).await;
    let waiting = tokio::spawn(work.into_future());
    until_async("the key of the waiter is in the queue", async || {
        key_count(etcd, prefix).await > before
    })
    .await;
    waiting
}
