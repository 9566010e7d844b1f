//! A paused reader among a thousand that go on: how late they hear of a write, and what the paused one costs.
//!
//! Writes come at a pace of their own, so that a reader that is held up is seen to be late; a writer that waits for
//! each answer would only be slower.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use actix_etcd::{Client, WatchEvent, proto::Event};
use testbed::Cluster;
use tokio::task::JoinSet;

use crate::{process::Memory, program::verdict};

const READERS: usize = 1_000;
const ROUNDS: usize = 3;
/// Between two writes: what one client, etcd and this bench can do on two cores with some to spare.
const PACE: Duration = Duration::from_millis(25);
const WRITES: usize = 200;
/// The paused reader has no room for half of them.
const BUFFER: usize = WRITES / 2;
const VALUE: usize = 1_000;

/// Says whether the paused one takes no more memory than it may. How late the others are is shown side by side.
pub async fn run() -> bool {
    let cluster = Cluster::start(1).await;
    // In turn, so that what else the machine does hits both.
    for _ in 0..ROUNDS {
        for paused in [0, 1] {
            let late = lateness(&cluster, paused).await;
            let at = |part: f64| {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_precision_loss,
                    clippy::cast_sign_loss,
                    reason = "an index of a list of thousands"
                )]
                let index = ((late.len() - 1) as f64 * part) as usize;
                late[index]
            };
            println!(
                "{READERS} readers beside {paused} paused: from put to event {:?} (p50), {:?} (p99), {:?} (worst)",
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }
    memory(&cluster).await
}

async fn connect(cluster: &Cluster) -> Client {
    // Past the proxies, which are part of this process.
    let connected = Client::connect(cluster.direct_endpoints()).await;
    connected.expect("connects")
}

/// How long after it was sent each write reached each reader, in order.
async fn lateness(cluster: &Cluster, paused: usize) -> Vec<Duration> {
    let (etcd, writer) = (connect(cluster).await, connect(cluster).await);
    let mut idle = Vec::new();
    for _ in 0..paused {
        idle.push(etcd.watch("key").buffer(BUFFER).await.expect("opens"));
    }
    let sent: Arc<[OnceLock<Instant>]> = (0..WRITES).map(|_| OnceLock::new()).collect();
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let mut watch = etcd.watch("key").await.expect("opens");
        let sent = sent.clone();
        readers.spawn(async move {
            let mut late = Vec::with_capacity(WRITES);
            while late.len() < WRITES {
                match watch.next().await.expect("goes on") {
                    WatchEvent::Events(events) => {
                        late.extend(events.iter().map(|event| since(event, &sent)));
                    }
                    other => panic!("{other:?}"),
                }
            }
            late
        });
    }
    let mut turns = tokio::time::interval(PACE);
    let mut puts = JoinSet::new();
    for nth in 0..WRITES {
        turns.tick().await;
        let value = format!("{nth:0>VALUE$}");
        let _ = sent[nth].set(Instant::now());
        puts.spawn(writer.put("key", value).into_future());
    }
    while let Some(written) = puts.join_next().await {
        written.expect("no panic").expect("puts");
    }
    let mut late = Vec::with_capacity(READERS * WRITES);
    while let Some(reader) = readers.join_next().await {
        late.extend(reader.expect("no panic"));
    }
    drop(idle);
    etcd.shutdown().await;
    writer.shutdown().await;
    late.sort_unstable();
    late
}

fn since(event: &Event, sent: &[OnceLock<Instant>]) -> Duration {
    let text = std::str::from_utf8(event.value()).unwrap_or_default();
    let nth: usize = text.parse().expect("a value is the number of its write");
    sent[nth].get().expect("it was sent").elapsed()
}

/// What a paused reader alone keeps in memory, beside what its buffer allows.
async fn memory(cluster: &Cluster) -> bool {
    const EVENTS: usize = 10_000;
    /// At a time: what their answers take is not the reader's.
    const AT_ONCE: usize = 50;
    let (etcd, writer) = (connect(cluster).await, connect(cluster).await);
    let value = "v".repeat(VALUE);
    let put = async |count: usize| {
        for _ in 0..count / AT_ONCE {
            let puts = (0..AT_ONCE).map(|_| writer.put("key", &value).into_future());
            for put in puts.map(tokio::spawn).collect::<Vec<_>>() {
                put.await.expect("no panic").expect("puts");
            }
        }
    };
    put(EVENTS).await;
    let before = Memory::now().resident;
    let paused = etcd.watch("key").buffer(EVENTS).await.expect("opens");
    put(2 * EVENTS).await;
    let grown = Memory::now().resident.saturating_sub(before) / 1024;
    // The frames of the answer and the allocator take their share.
    let each = size_of::<Event>() + VALUE + 256;
    let limit = (EVENTS * each / 1024) as u64;
    let holds = grown <= limit;
    println!(
        "a paused reader with room for {EVENTS} events of {VALUE} bytes: memory +{grown} KiB of {limit} it may take: {}",
        verdict(holds)
    );
    drop(paused);
    etcd.shutdown().await;
    writer.shutdown().await;
    holds
}
