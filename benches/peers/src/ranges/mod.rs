//! Reads large ranges: `ranges client=ours|etcd-client readers=1 secs=1 key=large endpoint=http://127.0.0.1:2379`
//! prints one line of JSON.
//!
//! Each reader repeats the same prefix read. Beside them, one caller repeats a get of one key and records its latency.
//! The application has two workers.

use std::{
    collections::HashMap,
    future::Future,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};

/// Largest response that etcd-client accepts; its default is 4 MiB.
const MAX_RESPONSE: usize = 1 << 30;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client handle of one caller. Returns the number of keys and bytes of a read.
trait Read: Clone + Send + 'static {
    fn range(&mut self, prefix: &str) -> impl Future<Output = (u64, u64)> + Send;
    fn get(&mut self, key: &str) -> impl Future<Output = ()> + Send;
}

#[derive(Clone)]
struct Ours(actix_etcd::Client);

impl Read for Ours {
    async fn range(&mut self, prefix: &str) -> (u64, u64) {
        let get = self.0.get(prefix).prefix().serializable().timeout(TIMEOUT);
        let kvs = get.await.expect("read a range").kvs;
        (
            kvs.len() as u64,
            kvs.iter()
                .map(|kv| (kv.key.len() + kv.value.len()) as u64)
                .sum(),
        )
    }

    async fn get(&mut self, key: &str) {
        self.0
            .get(key)
            .serializable()
            .timeout(TIMEOUT)
            .await
            .expect("read a key");
    }
}

#[derive(Clone)]
struct EtcdClient(etcd_client::KvClient);

impl Read for EtcdClient {
    async fn range(&mut self, prefix: &str) -> (u64, u64) {
        let options = etcd_client::GetOptions::new()
            .with_prefix()
            .with_serializable();
        let response = self
            .0
            .get(prefix, Some(options))
            .await
            .expect("read a range");
        let kvs = response.kvs();
        (
            kvs.len() as u64,
            kvs.iter()
                .map(|kv| (kv.key().len() + kv.value().len()) as u64)
                .sum(),
        )
    }

    async fn get(&mut self, key: &str) {
        let options = etcd_client::GetOptions::new().with_serializable();
        self.0.get(key, Some(options)).await.expect("read a key");
    }
}

pub fn main(allocations: fn() -> usize) -> ExitCode {
    let arguments: HashMap<String, String> = std::env::args()
        .skip(1)
        .filter_map(|word| {
            word.split_once('=')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
        })
        .collect();
    let endpoint = [arguments["endpoint"].clone()];
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2);
    let runtime = builder.enable_all().build().expect("start the runtime");
    runtime.block_on(async {
        if arguments["client"] == "ours" {
            let client = actix_etcd::Client::connect(&endpoint)
                .await
                .expect("connect");
            run(Ours(client), &arguments, allocations).await;
        } else {
            let client = etcd_client::Client::connect(&endpoint, None)
                .await
                .expect("connect");
            let client = client.kv_client().max_decoding_message_size(MAX_RESPONSE);
            run(EtcdClient(client), &arguments, allocations).await;
        }
    });
    ExitCode::SUCCESS
}

async fn run(
    mut client: impl Read,
    arguments: &HashMap<String, String>,
    allocations: fn() -> usize,
) {
    let number = |name: &str| -> f64 { arguments[name].parse().expect("a number") };
    let key = &arguments["key"];
    client.range(key).await;
    let (reads, keys, bytes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let counts = Arc::new((reads, keys, bytes));
    let stop = Arc::new(AtomicBool::new(false));
    let (started, cpu, counted) = (Instant::now(), cpu_time(), allocations());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count"
    )]
    let readers = number("readers") as usize;
    let tasks: Vec<_> = (0..readers)
        .map(|_| {
            let (mut client, key) = (client.clone(), key.clone());
            let (stop, counts) = (stop.clone(), counts.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let (keys, bytes) = client.range(&key).await;
                    counts.0.fetch_add(1, Ordering::Relaxed);
                    counts.1.fetch_add(keys, Ordering::Relaxed);
                    counts.2.fetch_add(bytes, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let (mut other, beside_stop) = (client.clone(), stop.clone());
    let beside = tokio::spawn(async move {
        let mut latencies = Vec::new();
        while !beside_stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let sent = Instant::now();
            other.get("small").await;
            latencies.push(sent.elapsed());
        }
        latencies
    });
    tokio::time::sleep(Duration::from_secs_f64(number("secs"))).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_time() - cpu);
    let allocated = (allocations() - counted) as f64;
    let mut latencies = beside.await.expect("no panic");
    latencies.sort_unstable();
    let millis = |index: usize| {
        latencies
            .get(index.min(latencies.len().saturating_sub(1)))
            .map_or(0.0, |l| l.as_secs_f64() * 1e3)
    };
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
    let megabytes = load(&counts.2) / 1e6;
    println!(
        "{{\"mb_per_s\":{:.1},\"cpu_ms_per_mb\":{:.4},\"allocations_per_kv\":{:.4},\"reads\":{},\"p50_ms\":{:.3},\"p99_ms\":{:.3},\"max_ms\":{:.3}}}",
        megabytes / elapsed,
        cpu * 1e3 / megabytes,
        allocated / load(&counts.1),
        load(&counts.0),
        millis(latencies.len() / 2),
        millis(latencies.len() * 99 / 100),
        millis(latencies.len()),
    );
}

/// Returns the CPU time of the process in seconds.
fn cpu_time() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage of this process");
    (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
}
