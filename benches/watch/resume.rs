//! Time until thousands of watches have resumed after all connections were reset at once.
//!
//! A separate process holds the watches, so that its memory is that of the client. The bench waits between two resets,
//! because the client delays the reconnect if a connection breaks soon after it was opened.

use std::time::{Duration, Instant};

use actix_etcd::{Client, WatchEvent};
use serde_json::{Value, json};
use testbed::Cluster;

use crate::{holder::WatchHolder, load_program::verdict};

const ROUNDS: usize = 7;
/// Time without faults between two resets.
const HEALTHY_TIME: Duration = Duration::from_millis(500);

/// Returns whether the targets were met, and the results as JSON.
pub async fn run(count: usize) -> (bool, Value) {
    let cluster = Cluster::start(3).await;
    let writer = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connect");
    let started = Instant::now();
    let mut holder = WatchHolder::start(&cluster.endpoints(), count);
    let bytes_per_watch = holder.next_report().memory.resident / count as u64;
    println!(
        "{count} watches opened in {:?}, {bytes_per_watch} bytes of memory per watch",
        started.elapsed()
    );
    let mut times = Vec::new();
    let mut rounds = Vec::new();
    let (mut bytes_per_watch, mut peak_per_watch) = (0, 0);
    for round in 0..ROUNDS {
        tokio::time::sleep(HEALTHY_TIME).await;
        let started = Instant::now();
        let without_reset = put_and_wait(&writer, &mut holder, started).await.0;
        let reset = Instant::now();
        for member in cluster.members() {
            member.client_link().reset_now();
        }
        let (after_reset, memory) = put_and_wait(&writer, &mut holder, reset).await;
        bytes_per_watch = memory.resident / count as u64;
        peak_per_watch = memory.peak / count as u64;
        println!(
            "{count} watches, round {round}: put received by all after {without_reset:?}, \
             after a reset {after_reset:?}; {bytes_per_watch} bytes per watch"
        );
        times.push(after_reset);
        rounds.push(json!({
            "put_ms": without_reset.as_secs_f64() * 1e3,
            "after_reset_ms": after_reset.as_secs_f64() * 1e3,
        }));
    }
    drop(holder);
    times.sort_unstable();
    // With few watches, the fixed cost of the client dominates, so there is no memory target.
    let (time_target, memory_target) = match count {
        ..=1_000 => (Duration::from_millis(150), None),
        _ => (Duration::from_secs(1), Some(4096)),
    };
    let (median, max) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    let met = median <= time_target && memory_target.is_none_or(|target| bytes_per_watch <= target);
    let memory_target = match memory_target {
        None => "including connections".to_owned(),
        Some(target) => format!("target ≤ {target}"),
    };
    println!(
        "{count} watches resumed: median {median:?} (target ≤ {time_target:?}), max {max:?}; \
         {bytes_per_watch} bytes per watch ({memory_target}), peak {peak_per_watch}: {}",
        verdict(met),
    );
    measure_single_watch(&writer).await;
    writer.shutdown().await;
    let results = json!({
        "watches": count,
        "rounds": rounds,
        "bytes_per_watch": bytes_per_watch,
        "peak_bytes_per_watch": peak_per_watch,
        "met": met,
    });
    (met, results)
}

/// Puts a value and waits until all watches have received it. Returns the time since `since`.
async fn put_and_wait(
    writer: &Client,
    holder: &mut WatchHolder,
    since: Instant,
) -> (Duration, crate::memory::Memory) {
    let put = writer.put("key", "value").await.expect("put");
    let report = holder.next_report();
    assert_eq!(
        report.revision, put.header.revision,
        "the watches received another revision"
    );
    (since.elapsed(), report.memory)
}

/// Prints the part of the time that etcd itself takes: it processes watches that are behind only every 100 ms.
async fn measure_single_watch(writer: &Client) {
    let mut times = Vec::new();
    for _ in 0..21 {
        let put = writer.put("key", "value").await.expect("put");
        let started = Instant::now();
        let open = writer.watch("key").start_revision(put.header.revision);
        let mut watch = open.await.expect("open a watch");
        while !matches!(watch.next().await, Some(WatchEvent::Events(_))) {}
        times.push(started.elapsed());
        // Varies the start relative to the 100 ms interval of etcd.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
    }
    times.sort_unstable();
    println!(
        "single new watch, one write behind: median {:?}, max {:?}",
        times[10], times[20]
    );
}
