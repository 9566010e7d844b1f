//! Thousands of watches lose all connections at once.

use std::time::{Duration, Instant};

use actix_etcd::{Client, Watch, WatchItem};
use testbed::Cluster;

use crate::process::resident;

const ROUNDS: usize = 5;

pub async fn run(count: usize) {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints())
        .await
        .expect("connects");
    let writer = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connects");
    // What a first watch starts is not a watch's cost.
    let first = etcd.watch("key").await.expect("opens");
    let before = resident();
    let began = Instant::now();
    let mut watches = Vec::with_capacity(count);
    while watches.len() < count {
        let some = (watches.len()..count).take(500);
        let opening: Vec<_> = some
            .map(|_| tokio::spawn(etcd.watch("key").into_future()))
            .collect();
        for opened in opening {
            watches.push(opened.await.expect("no panic").expect("opens"));
        }
    }
    println!("{count} watches opened in {:?}", began.elapsed());
    let each = resident().saturating_sub(before) / count as u64;
    println!("{count} watches: {each} bytes of memory each after opening");
    drop(first);
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let quiet = put(&writer, &mut watches).await;
        let reset = Instant::now();
        for member in cluster.members() {
            member.client_link().reset_now();
        }
        put(&writer, &mut watches).await;
        let took = reset.elapsed();
        println!(
            "{count} watches, round {round}: a put reaches all in {quiet:?}, after a reset in {took:?}"
        );
        times.push(took);
    }
    let each = resident().saturating_sub(before) / count as u64;
    times.sort_unstable();
    let limit = Duration::from_millis(if count > 1_000 { 1_000 } else { 150 });
    println!(
        "{count} watches resumed: median {:?}, worst {:?} (must {limit:?}); {each} bytes each (must 4096)",
        times[ROUNDS / 2],
        times[ROUNDS - 1],
    );
    etcd.shutdown().await;
}

/// One put; how long until the last watch has it.
async fn put(writer: &Client, watches: &mut [Watch]) -> Duration {
    let began = Instant::now();
    let revision = writer
        .put("key", "value")
        .await
        .expect("puts")
        .header
        .revision;
    for watch in watches {
        loop {
            match watch.next().await.expect("goes on") {
                WatchItem::Events(events) if events.revision() == revision => break,
                WatchItem::Ended(why) => panic!("{why}"),
                _ => {}
            }
        }
    }
    began.elapsed()
}
