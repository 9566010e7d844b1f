//! Measures a cache of a million keys: its memory, local reads, and changes.
//!
//! `cargo bench --bench cache` takes about a minute. A scripted server takes the place of etcd: it has a million keys with
//! values of 100 bytes, and then sends changes of random keys, one per revision, as fast as the client takes them. The
//! client runs in a process of its own, so its memory is that of the cache. At the end, the cache is compared with
//! what the server has sent. The bench exits with an error if a target is missed. Environment variables:
//!
//! | variable | default | |
//! |---|---|---|
//! | `CACHE_KEYS` | 1000000 | keys |
//! | `CACHE_VALUE` | 100 | bytes per value |
//! | `CACHE_EVENTS` | 2000000 | changes |

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench panics on failure, and figures need no full precision"
)]

mod cache_client;
mod key_server;
#[path = "../load_program/mod.rs"]
#[allow(dead_code, reason = "this bench runs no other clients")]
mod load_program;
#[path = "../watch/memory.rs"]
mod memory;
mod workload;

use std::process::ExitCode;

use load_program::verdict;
use serde_json::{Value, json};
use testbed::ChildProgram;
use workload::Workload;

/// A figure with its bound.
struct Target {
    name: &'static str,
    figure: f64,
    bound: f64,
    at_most: bool,
}

impl Target {
    fn met(&self) -> bool {
        if self.at_most {
            self.figure <= self.bound
        } else {
            self.figure >= self.bound
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    cache_client::run_if_child();
    let workload = Workload::from_env();
    let server = key_server::start(workload).await;
    let mut client = ChildProgram::start(cache_client::CHILD, &server.endpoint());
    let line = tokio::task::spawn_blocking(move || client.next_line()).await;
    let results: Value = serde_json::from_str(&line.expect("the client prints a line"))
        .expect("the client prints JSON");
    let figure = |name: &str| results[name].as_f64().expect("a number");
    println!("{} keys, {} bytes each", workload.keys, workload.value);
    println!("  first load       {:>8.2} s", figure("load_s"));
    println!("  data             {:>8.1} MB", figure("data_bytes") / 1e6);
    println!(
        "  memory           {:>8.1} MB",
        figure("memory_bytes") / 1e6
    );
    println!(
        "  after changes    {:>8.1} MB",
        figure("memory_after_bytes") / 1e6
    );
    println!(
        "  own estimate     {:>8.1} MB",
        figure("estimate_bytes") / 1e6
    );
    println!("  local get        {:>8.0} ns", figure("get_ns"));
    println!("  get in changes   {:>8.0} ns", figure("busy_get_ns"));
    println!("  full iteration   {:>8.0} ms", figure("iteration_ms"));
    println!("  changes          {:>8.0} /s", figure("events_per_s"));
    println!("  CPU per change   {:>8.2} µs", figure("cpu_us_per_event"));
    let targets = [
        (
            "memory / data",
            figure("memory_bytes") / figure("data_bytes"),
            2.0,
            true,
        ),
        (
            "memory after changes / data",
            figure("memory_after_bytes") / figure("data_bytes"),
            2.0,
            true,
        ),
        ("local get in µs", figure("get_ns") / 1e3, 0.5, true),
        (
            "changes per second",
            figure("events_per_s"),
            100_000.0,
            false,
        ),
    ];
    let targets = targets.map(|(name, figure, bound, at_most)| Target {
        name,
        figure,
        bound,
        at_most,
    });
    println!("\ntargets");
    for target in &targets {
        println!(
            "  {:<6}  {:<28} {:>10.2} (target {} {})",
            verdict(target.met()),
            target.name,
            target.figure,
            if target.at_most { "≤" } else { "≥" },
            target.bound
        );
    }
    let rows: Vec<Value> = targets
        .iter()
        .map(|target| {
            json!({"name": target.name, "figure": target.figure, "target": target.bound, "met": target.met()})
        })
        .collect();
    let path = load_program::result_path("cache.json");
    let all = json!({"results": results, "targets": rows});
    std::fs::write(&path, all.to_string()).expect("write the result file");
    println!("{}", path.display());
    ExitCode::from(u8::from(!targets.iter().all(Target::met)))
}
