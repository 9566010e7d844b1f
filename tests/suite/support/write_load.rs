//! Writes for watches to observe while faults occur.

use std::time::Duration;

use actix_etcd::Client;
use tokio::task::JoinHandle;

use crate::support::watch_items::WATCH_TIMEOUT;

/// Number of the keys `k/0`, `k/1` and so on.
pub const KEYS: u64 = 10;

/// Puts, deletes and transactions over a few keys, each value once, until stopped. Failed writes are ignored.
pub struct WriteLoad(JoinHandle<()>);

impl WriteLoad {
    pub fn start(etcd: &Client) -> Self {
        let etcd = etcd.clone();
        Self(tokio::spawn(async move {
            for n in 0_u64.. {
                let key = format!("k/{}", n * 7 % KEYS);
                let timeout = Duration::from_millis(500);
                let _ = match n % 5 {
                    0 => etcd.delete(key).timeout(timeout).await.map(drop),
                    1 => {
                        let puts = ["k/0", "k/a", "k/b", "other"]
                            .map(|key| actix_etcd::kv::put(key, n.to_string()));
                        etcd.txn().then(puts).timeout(timeout).await.map(drop)
                    }
                    _ => etcd
                        .put(key, n.to_string())
                        .timeout(timeout)
                        .await
                        .map(drop),
                };
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }))
    }

    /// Stops the load and makes a last write to all keys with the prefix `k/`, and so to a key of every watch. Returns
    /// its revision.
    pub async fn stop(self, etcd: &Client) -> i64 {
        self.0.abort();
        let _ = self.0.await;
        let keys = (0..KEYS).map(|n| n.to_string());
        let keys = keys.chain(["a", "b", "last"].map(str::to_owned));
        let put = |key| actix_etcd::kv::put(format!("k/{key}"), "the last");
        let puts: Vec<_> = keys.map(put).collect();
        let timeout = Duration::from_secs(20);
        loop {
            // Repeating a write with an unknown outcome is harmless here.
            if let Ok(response) = etcd.txn().then(puts.clone()).timeout(timeout).await {
                return response.header.revision;
            }
        }
    }
}

/// Writes until a put succeeds. Returns its revision.
pub async fn put_until_ok(etcd: &Client, key: &str, value: &str) -> i64 {
    loop {
        if let Ok(response) = etcd.put(key, value).timeout(WATCH_TIMEOUT).await {
            return response.header.revision;
        }
    }
}
