//! The effect of a paused reader on the latency of a thousand other readers, and the memory that it takes.
//!
//! Writes are sent at fixed intervals, so that a delayed reader increases the measured latency. A writer that waited
//! for each response would only become slower.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use actix_etcd::{Client, WatchEvent, proto::Event};
use testbed::Cluster;
use tokio::task::JoinSet;

use crate::{load_program::verdict, memory::Memory};

const READERS: usize = 1_000;
const ROUNDS: usize = 3;
/// Interval between two writes, which two cores can sustain.
const WRITE_INTERVAL: Duration = Duration::from_millis(25);
const WRITES: usize = 200;
/// Buffer of the paused reader: half of the writes do not fit.
const BUFFER: usize = WRITES / 2;
const VALUE: usize = 1_000;

/// Returns whether the memory of the paused reader is within its bound. The latencies are only printed.
pub async fn run() -> bool {
    let cluster = Cluster::start(1).await;
    // Alternates, so that other load on the machine affects both.
    for _ in 0..ROUNDS {
        for paused in [0, 1] {
            let latencies = measure_latencies(&cluster, paused).await;
            let quantile = |part: f64| {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_precision_loss,
                    clippy::cast_sign_loss,
                    reason = "an index of a list of thousands"
                )]
                let index = ((latencies.len() - 1) as f64 * part) as usize;
                latencies[index]
            };
            println!(
                "{READERS} readers and {paused} paused: latency from put to event p50 {:?}, p99 {:?}, max {:?}",
                quantile(0.5),
                quantile(0.99),
                quantile(1.0)
            );
        }
    }
    memory_within_bound(&cluster).await
}

async fn connect(cluster: &Cluster) -> Client {
    // Bypasses the proxies, which run in this process.
    let connected = Client::connect(cluster.direct_endpoints()).await;
    connected.expect("connect")
}

/// Returns the latencies from each put to its event at each reader, sorted.
async fn measure_latencies(cluster: &Cluster, paused: usize) -> Vec<Duration> {
    let (etcd, writer) = (connect(cluster).await, connect(cluster).await);
    let mut paused_watches = Vec::new();
    for _ in 0..paused {
        paused_watches.push(
            etcd.watch("key")
                .buffer(BUFFER)
                .await
                .expect("open a watch"),
        );
    }
    let sent: Arc<[OnceLock<Instant>]> = (0..WRITES).map(|_| OnceLock::new()).collect();
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let mut watch = etcd.watch("key").await.expect("open a watch");
        let sent = sent.clone();
        readers.spawn(async move {
            let mut latencies = Vec::with_capacity(WRITES);
            while latencies.len() < WRITES {
                match watch.next().await.expect("the watch continues") {
                    WatchEvent::Events(events) => {
                        latencies.extend(events.iter().map(|event| latency(event, &sent)));
                    }
                    other => panic!("unexpected item {other:?}"),
                }
            }
            latencies
        });
    }
    let mut ticks = tokio::time::interval(WRITE_INTERVAL);
    let mut puts = JoinSet::new();
    for nth in 0..WRITES {
        ticks.tick().await;
        let value = format!("{nth:0>VALUE$}");
        let _ = sent[nth].set(Instant::now());
        puts.spawn(writer.put("key", value).into_future());
    }
    while let Some(written) = puts.join_next().await {
        written.expect("no panic").expect("put");
    }
    let mut latencies = Vec::with_capacity(READERS * WRITES);
    while let Some(reader) = readers.join_next().await {
        latencies.extend(reader.expect("no panic"));
    }
    drop(paused_watches);
    etcd.shutdown().await;
    writer.shutdown().await;
    latencies.sort_unstable();
    latencies
}

fn latency(event: &Event, sent: &[OnceLock<Instant>]) -> Duration {
    let text = std::str::from_utf8(event.value()).unwrap_or_default();
    let nth: usize = text.parse().expect("the value is the number of the write");
    sent[nth].get().expect("the time of the write").elapsed()
}

/// Compares the memory of a paused reader with the size of its buffer.
async fn memory_within_bound(cluster: &Cluster) -> bool {
    const EVENTS: usize = 10_000;
    /// Concurrent puts; few, because their responses also take memory.
    const CONCURRENT_PUTS: usize = 50;
    let (etcd, writer) = (connect(cluster).await, connect(cluster).await);
    let value = "v".repeat(VALUE);
    let put = async |count: usize| {
        for _ in 0..count / CONCURRENT_PUTS {
            let puts = (0..CONCURRENT_PUTS).map(|_| writer.put("key", &value).into_future());
            for put in puts.map(tokio::spawn).collect::<Vec<_>>() {
                put.await.expect("no panic").expect("put");
            }
        }
    };
    put(EVENTS).await;
    let before = Memory::now().resident;
    let paused = etcd
        .watch("key")
        .buffer(EVENTS)
        .await
        .expect("open a watch");
    put(2 * EVENTS).await;
    let growth = Memory::now().resident.saturating_sub(before) / 1024;
    // Includes the frames of the response and the overhead of the allocator.
    let event_size = size_of::<Event>() + VALUE + 256;
    let bound = (EVENTS * event_size / 1024) as u64;
    let met = growth <= bound;
    println!(
        "paused reader with a buffer of {EVENTS} events of {VALUE} bytes: memory +{growth} KiB (bound {bound} KiB): {}",
        verdict(met)
    );
    drop(paused);
    etcd.shutdown().await;
    writer.shutdown().await;
    met
}
