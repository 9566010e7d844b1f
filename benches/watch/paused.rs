//! A paused reader among a thousand that go on.

use std::time::{Duration, Instant};

use actix_etcd::{Client, WatchItem};
use testbed::Cluster;
use tokio::task::JoinSet;

use crate::process::Memory;

const READERS: usize = 1_000;
const LENGTH: Duration = Duration::from_secs(4);

pub async fn run() {
    let cluster = Cluster::start(1).await;
    for paused in [0, 1, 0, 1] {
        let (rate, grown) = measure(&cluster, paused).await;
        println!(
            "{READERS} readers beside {paused} paused: {rate:.0} events a second in all, memory +{grown} KiB"
        );
    }
}

async fn measure(cluster: &Cluster, paused: usize) -> (f64, u64) {
    // Past the proxies, which are part of this process.
    let etcd = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connects");
    let writer = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connects");
    let mut idle = Vec::new();
    for _ in 0..paused {
        idle.push(etcd.watch("key").buffer(1_000).await.expect("opens"));
    }
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let mut watch = etcd.watch("key").await.expect("opens");
        readers.spawn(async move {
            let mut seen = 0_u32;
            while let Some(WatchItem::Events(events)) = watch.next().await {
                seen += u32::try_from(events.len()).unwrap_or_default();
            }
            seen
        });
    }
    let before = Memory::now().resident;
    let began = Instant::now();
    let value = "v".repeat(1_000);
    let mut puts = 0;
    while began.elapsed() < LENGTH {
        writer.put("key", &value).await.expect("puts");
        puts += 1;
    }
    let grown = Memory::now().resident.saturating_sub(before) / 1024;
    let took = began.elapsed().as_secs_f64();
    etcd.shutdown().await;
    let mut seen = 0_u64;
    while let Some(reader) = readers.join_next().await {
        seen += u64::from(reader.expect("no panic"));
    }
    println!("{puts} puts, {seen} events");
    drop(idle);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = seen as f64 / took;
    (rate, grown)
}
