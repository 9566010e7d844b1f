//! Mode `bulk`: writes or reads a number of keys once, and prints keys per second, CPU time per key and the growth of
//! the resident memory.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    arguments::{Arguments, Task},
    clients::{Call, CallError, Connect},
    load::cpu_time,
};

/// Enough for one range of all keys on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the task with the bulk operations of actix-etcd.
pub async fn run_ours(client: &actix_etcd::Client, arguments: &Arguments) -> Result<(), String> {
    let measurement = Measurement::start()?;
    let done = perform(client, arguments).await;
    measurement.print(done.map_err(|error| error.to_string())?)
}

async fn perform(client: &actix_etcd::Client, arguments: &Arguments) -> actix_etcd::Result<usize> {
    let prefix = format!("{}/", arguments.prefix);
    match arguments.task {
        Task::Import => {
            let value = actix_etcd::IntoBytes::into_bytes(vec![b'v'; arguments.value]);
            let mut bulk = client.bulk().start();
            for number in 0..arguments.keys {
                bulk.put(key(arguments, number), value.clone()).await?;
            }
            let report = bulk.finish().await?;
            Ok(usize::try_from(report.written).unwrap_or(0))
        }
        Task::GetMany => {
            let keys = (0..arguments.keys).map(|number| key(arguments, number));
            let found = client.get_many(keys).await?;
            Ok(found.kvs.iter().flatten().count())
        }
        Task::Export => {
            let mut stream = client.get(prefix).prefix().stream();
            let mut keys = 0;
            while let Some(kv) = stream.next().await {
                kv?;
                keys += 1;
            }
            Ok(keys)
        }
        Task::Range => {
            let range = client.get(prefix).prefix().timeout(TIMEOUT).await?;
            Ok(range.kvs.len())
        }
    }
}

/// Runs the task with one call per key, by several callers.
pub async fn run_calls<C: Connect>(client: C, arguments: &Arguments) -> Result<(), String> {
    let measurement = Measurement::start()?;
    let next = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..arguments.callers)
        .map(|_| tokio::spawn(call(client.clone(), arguments.clone(), next.clone())))
        .collect();
    for caller in callers {
        let called = caller.await.map_err(|error| error.to_string())?;
        called.map_err(|error| format!("a call failed: {}", error.kind))?;
    }
    measurement.print(arguments.keys)
}

async fn call<C: Call>(
    mut client: C,
    arguments: Arguments,
    next: Arc<AtomicUsize>,
) -> Result<(), CallError> {
    let value = "v".repeat(arguments.value);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= arguments.keys {
            return Ok(());
        }
        let key = key(&arguments, number);
        match arguments.task {
            Task::Import => client.put(&key, &value).await?,
            Task::GetMany | Task::Export | Task::Range => client.get(&key).await?,
        }
    }
}

fn key(arguments: &Arguments, number: usize) -> String {
    format!("{}/{number:08}", arguments.prefix)
}

struct Measurement {
    started: Instant,
    cpu: Duration,
    resident: u64,
}

impl Measurement {
    fn start() -> Result<Self, String> {
        Ok(Self {
            started: Instant::now(),
            cpu: cpu_time()?,
            resident: memory("VmRSS:"),
        })
    }

    fn print(self, keys: usize) -> Result<(), String> {
        let (elapsed, cpu) = (self.started.elapsed(), cpu_time()?.saturating_sub(self.cpu));
        let growth = memory("VmHWM:").saturating_sub(self.resident);
        #[expect(clippy::cast_precision_loss, reason = "a count of keys is small")]
        let count = keys.max(1) as f64;
        println!(
            "{{\"keys\":{keys},\"keys_per_s\":{:.1},\"cpu_us_per_key\":{:.3},\"rss_growth\":{growth}}}",
            count / elapsed.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / count,
        );
        Ok(())
    }
}

/// Returns a memory figure of this process in bytes, from procfs.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().next());
    value.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}
