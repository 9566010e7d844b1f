//! Without actix: an ordinary multi-threaded tokio program. The client lives on a thread of its own, and its clones
//! work from every task.
//!
//! `cargo run --example plain_tokio` starts three members itself. With `ETCD_ENDPOINTS=http://a:2379,http://b:2379` it
//! uses yours.

use std::{error::Error, time::Duration};

use actix_etcd::{
    Client, WatchEvent,
    kv::{Compare, put},
};
use testbed::Cluster;
use tokio::task::JoinSet;

const WORKERS: u32 = 4;
const ROUNDS: u32 = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (cluster, endpoints) = if let Ok(given) = std::env::var("ETCD_ENDPOINTS") {
        (None, given.split(',').map(str::to_owned).collect())
    } else {
        println!("▸ starting three etcd members on this machine");
        let cluster = Cluster::start(3).await;
        let endpoints = cluster.endpoints();
        (Some(cluster), endpoints)
    };
    let etcd = Client::builder(endpoints)
        .request_timeout(Duration::from_secs(3))
        .connect()
        .await?;
    etcd.put("tokio/counter", "0").await?;

    println!("▸ {WORKERS} tasks count to {} together", WORKERS * ROUNDS);
    let mut watch = etcd.watch("tokio/counter").await?;
    let mut workers: JoinSet<actix_etcd::Result<()>> = JoinSet::new();
    for _ in 0..WORKERS {
        let etcd = etcd.clone();
        workers.spawn(async move {
            for _ in 0..ROUNDS {
                count(&etcd).await?;
            }
            Ok(())
        });
    }

    // A watch is a stream like any other.
    let goal = (WORKERS * ROUNDS).to_string();
    while let Some(item) = watch.next().await {
        let WatchEvent::Events(events) = item else {
            continue;
        };
        let last = events.iter().rev().find_map(|event| event.kv.as_ref());
        let value = last.map(|kv| String::from_utf8_lossy(&kv.value));
        println!("  {}", value.as_deref().unwrap_or("gone"));
        if value.as_deref() == Some(&goal) {
            break;
        }
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }

    println!("▸ reading all keys in pages");
    let mut pages = etcd.get("tokio/").prefix().pages(100);
    while let Some(page) = pages.next().await {
        println!("  {} keys", page?.kvs.len());
    }
    etcd.delete("tokio/").prefix().await?;
    etcd.shutdown().await;
    drop(cluster);
    Ok(())
}

/// Adds one, whoever else does: writes only if nobody has since it was read.
async fn count(etcd: &Client) -> actix_etcd::Result<()> {
    loop {
        let found = etcd.get("tokio/counter").await?;
        let Some(kv) = found.kvs.first() else {
            return Ok(());
        };
        let number: u32 = String::from_utf8_lossy(&kv.value).parse().unwrap_or(0);
        let done = etcd
            .txn()
            .when([Compare::mod_revision("tokio/counter").eq(kv.mod_revision)])
            .then([put("tokio/counter", (number + 1).to_string())])
            .await?;
        if done.succeeded {
            return Ok(());
        }
    }
}
