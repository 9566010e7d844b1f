//! A multi-threaded tokio program without actix. The client runs on its own thread; its clones work in every task.
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

const COUNTER: &str = "tokio/counter";
const WORKERS: u32 = 4;
const INCREMENTS: u32 = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (cluster, endpoints) = if let Ok(list) = std::env::var("ETCD_ENDPOINTS") {
        (None, list.split(',').map(str::to_owned).collect())
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
    etcd.put(COUNTER, "0").await?;

    let total = WORKERS * INCREMENTS;
    println!("▸ {WORKERS} tasks increment one counter to {total}");
    let mut watch = etcd.watch(COUNTER).await?;
    let mut workers: JoinSet<actix_etcd::Result<()>> = JoinSet::new();
    for _ in 0..WORKERS {
        let etcd = etcd.clone();
        workers.spawn(async move {
            for _ in 0..INCREMENTS {
                increment(&etcd).await?;
            }
            Ok(())
        });
    }

    // A watch is a stream. Each `Events` holds all changes of one revision.
    while let Some(event) = watch.next().await {
        let WatchEvent::Events(events) = event else {
            continue;
        };
        let value = events.last().map_or(&[][..], |event| event.value());
        println!("  counter is {}", String::from_utf8_lossy(value));
        if value == total.to_string().as_bytes() {
            break;
        }
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }

    println!("▸ reading all keys in pages of 100");
    let mut pages = etcd.get("tokio/").prefix().pages(100);
    while let Some(page) = pages.next().await {
        println!("  a page with {} key(s)", page?.kvs.len());
    }
    etcd.delete("tokio/").prefix().await?;
    etcd.shutdown().await;
    drop(cluster);
    Ok(())
}

/// Adds one to the counter. Writes only if no other task has changed it since it was read; otherwise reads again.
async fn increment(etcd: &Client) -> actix_etcd::Result<()> {
    loop {
        let response = etcd.get(COUNTER).await?;
        let Some(kv) = response.first() else {
            return Ok(());
        };
        let number: u32 = kv.value_str().unwrap_or_default().parse().unwrap_or(0);
        let txn = etcd
            .txn()
            .when(Compare::mod_revision(COUNTER).eq(kv.mod_revision))
            .then(put(COUNTER, (number + 1).to_string()))
            .await?;
        if txn.succeeded {
            return Ok(());
        }
    }
}
