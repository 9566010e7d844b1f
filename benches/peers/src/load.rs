//! Mode `load`: measures the throughput, latency and CPU time of calls.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::{
    arguments::{Arguments, Op},
    clients::{Call, Connect},
};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

const VALUE: &str = "a value of sixty-four bytes, as configuration values often are.";

/// Results of one caller.
#[derive(Default)]
struct CallerResults {
    /// Latencies of the successful calls, in nanoseconds.
    nanos: Vec<u32>,
    errors: BTreeMap<String, u64>,
}

pub async fn run<C: Connect>(client: C, arguments: &Arguments) -> Result<String, String> {
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let callers: Vec<_> = (0..arguments.callers)
        .map(|number| {
            let key = format!("{}/{number}", arguments.prefix);
            tokio::spawn(call(client.clone(), arguments.op, key, phase.clone()))
        })
        .collect();
    tokio::time::sleep(arguments.warmup).await;
    let (started, cpu) = (Instant::now(), cpu_time()?);
    phase.store(MEASURE, Ordering::Relaxed);
    tokio::time::sleep(arguments.duration).await;
    phase.store(STOP, Ordering::Relaxed);
    let (elapsed, cpu) = (started.elapsed(), cpu_time()?.saturating_sub(cpu));
    let mut results = CallerResults::default();
    for caller in callers {
        let caller_results = caller.await.map_err(|error| error.to_string())?;
        results.nanos.extend(caller_results.nanos);
        for (kind, count) in caller_results.errors {
            *results.errors.entry(kind).or_default() += count;
        }
    }
    Ok(summary(&mut results, elapsed, cpu))
}

async fn call<C: Call>(mut client: C, op: Op, key: String, phase: Arc<AtomicU8>) -> CallerResults {
    let mut results = CallerResults::default();
    loop {
        let sent = Instant::now();
        let response = match op {
            Op::Get => client.get(&key).await,
            Op::Put => client.put(&key, VALUE).await,
        };
        let took = sent.elapsed();
        match phase.load(Ordering::Relaxed) {
            STOP => return results,
            MEASURE => match response {
                Ok(()) => results
                    .nanos
                    .push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX)),
                Err(error) => *results.errors.entry(error.kind).or_default() += 1,
            },
            _ => {}
        }
    }
}

/// Returns the CPU time of the process, user and system.
pub fn cpu_time() -> Result<Duration, String> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|error| error.to_string())?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

fn summary(results: &mut CallerResults, elapsed: Duration, cpu: Duration) -> String {
    results.nanos.sort_unstable();
    let calls = results.nanos.len();
    let percentile = |percent: usize| {
        let index = (calls * percent / 100).min(calls.saturating_sub(1));
        f64::from(results.nanos.get(index).copied().unwrap_or(0)) / 1e3
    };
    #[expect(clippy::cast_precision_loss, reason = "a count of calls is small")]
    let count = calls.max(1) as f64;
    let mut text = format!(
        "{{\"calls_per_s\":{:.1},\"p50_us\":{:.2},\"p99_us\":{:.2},\"cpu_us\":{:.3},\"calls\":{calls},\"errors\":{{",
        count / elapsed.as_secs_f64(),
        percentile(50),
        percentile(99),
        cpu.as_secs_f64() * 1e6 / count,
    );
    for (number, (kind, count)) in results.errors.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let _ = write!(text, "{comma}\"{kind}\":{count}");
    }
    text.push_str("}}");
    text
}
