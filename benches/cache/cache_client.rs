//! The process of the cache. It prints its figures as one line of JSON.

use std::{
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use actix_etcd::{Client, layers::cache::Cache};
use serde_json::json;
use testbed::exit_at_end_of_stdin;

use crate::{memory::Memory, workload::Workload};

/// Rounds of random reads, and reads per round.
const ROUNDS: u64 = 100;
const READS: u64 = 10_000;

pub const CHILD: &str = "CACHE_BENCH_CLIENT";

/// Runs the client if this process was started as one, and does not return in that case.
pub fn run_if_child() {
    if let Ok(endpoint) = std::env::var(CHILD) {
        exit_at_end_of_stdin();
        let run = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("start the runtime");
            runtime.block_on(measure(&endpoint, Workload::from_env()));
        });
        run.join().expect("the measurement succeeds");
        std::process::exit(0);
    }
}

async fn measure(endpoint: &str, workload: Workload) {
    let etcd = Client::connect([endpoint]).await.expect("connect");
    // The first cache also starts the stream, which is not part of the cost of a key.
    let empty = etcd.cache("empty/").await.expect("a cache without keys");
    let before = Memory::now().resident;
    let start = Instant::now();
    let cache = etcd.cache(Workload::PREFIX).await.expect("the cache");
    let load = start.elapsed();
    assert_eq!(cache.len() as u64, workload.keys);
    let memory = Memory::now().resident.saturating_sub(before);
    drop(empty);
    let get = time_per_get(&cache, workload);
    let start = Instant::now();
    assert_eq!(cache.iter().count() as u64, workload.keys);
    let iteration = start.elapsed();

    let (start, cpu) = (Instant::now(), cpu_time());
    etcd.put("begin", "").await.expect("start the changes");
    let last = workload.first_revision() + i64::try_from(workload.events).expect("a revision");
    cache.wait_for_revision(last).await.expect("all changes");
    let (elapsed, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu));
    let memory_after = Memory::now().resident.saturating_sub(before);
    check(&cache, workload);
    // Again, while the server sends the same changes to a second cache, which occupies the client's thread.
    let second = etcd.cache(Workload::PREFIX).await.expect("a second cache");
    etcd.put("begin", "").await.expect("start the changes");
    let busy_get = time_per_get(&second, workload);
    let result = json!({
        "load_s": load.as_secs_f64(),
        "data_bytes": data_bytes(workload),
        "memory_bytes": memory,
        "memory_after_bytes": memory_after,
        "peak_bytes": Memory::now().peak.saturating_sub(before),
        "estimate_bytes": cache.snapshot().memory(),
        "get_ns": get.as_secs_f64() * 1e9,
        "busy_get_ns": busy_get.as_secs_f64() * 1e9,
        "iteration_ms": iteration.as_secs_f64() * 1e3,
        "events_per_s": workload.events as f64 / elapsed.as_secs_f64(),
        "cpu_us_per_event": cpu.as_secs_f64() * 1e6 / workload.events as f64,
    });
    println!("{result}");
}

/// Returns the size of all keys and values.
fn data_bytes(workload: Workload) -> u64 {
    workload.keys * (Workload::key(0).len() + workload.value) as u64
}

/// Returns the mean time of a read of a random key. The best round counts, because other load on the machine can
/// only slow the reads down. Each round reads other keys.
fn time_per_get(cache: &Cache, workload: Workload) -> Duration {
    let rounds = (0..ROUNDS).map(|round| {
        // In one list, so that its reads are sequential.
        let keys: Vec<u8> = (round * READS..(round + 1) * READS)
            .flat_map(|read| Workload::key(workload.changed_key(read + 77)).into_bytes())
            .collect();
        let start = Instant::now();
        for key in keys.chunks_exact(Workload::key(0).len()) {
            let entry = cache.get(key).expect("the key exists");
            black_box(entry.value().first());
        }
        start.elapsed() / u32::try_from(READS).expect("a number of reads")
    });
    rounds.min().expect("several rounds")
}

/// Compares the cache with the changes that the server has sent.
fn check(cache: &Cache, workload: Workload) {
    let mut last_change = vec![0; usize::try_from(workload.keys).expect("a size")];
    for change in 1..=workload.events {
        last_change[usize::try_from(workload.changed_key(change)).expect("an index")] = change;
    }
    assert_eq!(cache.len(), last_change.len());
    for (entry, (number, change)) in cache.iter().zip((0..).zip(last_change)) {
        assert_eq!(entry.key(), Workload::key(number).as_bytes());
        assert_eq!(entry.value(), workload.value(change).as_bytes());
    }
}

/// Returns the CPU time of the threads of this process so far.
fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs of Linux");
    let nanos = tasks.flatten().map(|task| {
        let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let first = stat.split_whitespace().next();
        first.and_then(|text| text.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}
