//! Measures large responses: ranges of 1 MiB and 64 MiB, one and sixteen at once, compared with etcd-client, against a
//! server that is never the bottleneck and against real etcd.
//!
//! `cargo bench --bench large_answers`. Both clients run one after the other in every round; figures are medians. A get
//! of one key runs beside the reads; its latency shows whether they stall other calls. Allocations are counted in
//! separate runs. The bench exits with an error if a target is missed:
//!
//! | figure | target |
//! |---|---|
//! | allocations per key-value | ≤ 1 |
//! | MB/s of one read at once, constant server | ≥ 1.5 × etcd-client |
//! | latency of the small get beside several reads, p99, constant server | ≤ 100 ms |
//!
//! Several reads at once use both cores of a small machine together with the server, and real etcd is slower than both
//! clients, so their MB/s have no target. Environment variables:
//!
//! | variable | default | |
//! |---|---|---|
//! | `LARGE_ROUNDS` | 3 | rounds per workload |
//! | `LARGE_SECS` | 1 | measured seconds per run |
//! | `LARGE_SERVERS` | constant,etcd | |
//! | `LARGE_MIB` | 1,64 | sizes of a response |
//! | `LARGE_READERS` | 1,16 | reads at once |
//! | `LARGE_VALUE` | 256 | size of a value in bytes |

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench panics on failure, and its figures are rounded"
)]

#[path = "../charts/mod.rs"]
mod charts;
#[path = "../load_program/mod.rs"]
mod load_program;
mod server;

use std::{
    env,
    process::{Command, ExitCode, Stdio},
};

use actix_etcd::{Client, kv};
use load_program::{LoadProgram, verdict};
use serde_json::{Value, json};
use server::LargeAnswersServer;
use testbed::Cluster;

const CLIENTS: [&str; 2] = ["ours", "etcd-client"];
/// Smallest ratio of MB/s to etcd-client, for one read at once.
const MIN_RATE: f64 = 1.5;
/// Longest latency of a small get beside several reads. A client that decodes a whole response at once needs more.
const MAX_STALL_MS: f64 = 100.0;
/// Bytes of a key-value besides its value: the key, revisions and lengths.
const KEY_OVERHEAD: usize = 35;
/// Number of puts per transaction: etcd's default limit.
const PUTS_PER_TXN: usize = 128;

fn list(name: &str, default: &str) -> Vec<String> {
    let text = env::var(name).unwrap_or_else(|_| default.to_owned());
    text.split(',').map(|word| word.trim().to_owned()).collect()
}

fn number(name: &str, default: &str) -> usize {
    let word = list(name, default).remove(0);
    word.parse().expect("a number")
}

#[tokio::main]
async fn main() -> ExitCode {
    LargeAnswersServer::run_if_child();
    let program = LoadProgram::build();
    let value_size = number("LARGE_VALUE", "256");
    let (mut rows, mut all_met) = (Vec::new(), true);
    for server in list("LARGE_SERVERS", "constant,etcd") {
        for mib in list("LARGE_MIB", "1,64") {
            let mib: usize = mib.parse().expect("LARGE_MIB is a list of numbers");
            let keys = (mib << 20) / (value_size + KEY_OVERHEAD);
            let constant = LargeAnswersServer::start(keys, value_size);
            let (cluster, endpoint) = if server == "etcd" {
                let cluster = Cluster::start(1).await;
                let endpoint = cluster.direct_endpoints().remove(0);
                fill(&endpoint, keys, value_size).await;
                (Some(cluster), endpoint)
            } else {
                (None, constant.endpoint.clone())
            };
            for readers in list("LARGE_READERS", "1,16") {
                let results = measure(&program, &endpoint, &readers);
                all_met &= print(&server, mib, &readers, &results);
                rows.extend(results.map(|(client, mut result)| {
                    result["server"] = json!(server);
                    result["size_mib"] = json!(mib);
                    result["readers"] = json!(readers);
                    result["client"] = json!(client);
                    result
                }));
            }
            drop(cluster);
        }
    }
    let path = load_program::result_path("large_answers.json");
    std::fs::write(&path, json!({ "rows": rows }).to_string()).expect("write the result file");
    println!("{}", path.display());
    charts::draw(&path);
    ExitCode::from(u8::from(!all_met))
}

/// Writes the keys of a range to a real member.
async fn fill(endpoint: &str, keys: usize, value_size: usize) {
    let etcd = Client::connect([endpoint]).await.expect("connect");
    let value = vec![b'v'; value_size];
    for first in (0..keys).step_by(PUTS_PER_TXN) {
        let numbers = first..keys.min(first + PUTS_PER_TXN);
        let puts = numbers.map(|number| kv::put(format!("large/{number:08}"), value.clone()));
        let puts: Vec<_> = puts.collect();
        etcd.txn().then(puts).await.expect("write keys");
    }
}

/// Runs both clients in every round, and returns the medians of each.
fn measure(program: &LoadProgram, endpoint: &str, readers: &str) -> [(&'static str, Value); 2] {
    let mut rounds = CLIENTS.map(|client| (client, Vec::new()));
    for _ in 0..number("LARGE_ROUNDS", "3") {
        for (client, results) in &mut rounds {
            results.push(run(program, "ranges", client, endpoint, readers));
        }
    }
    rounds.map(|(client, rounds)| {
        let counted = run(program, "ranges_counted", client, endpoint, readers);
        (client, medians(&rounds, &counted))
    })
}

fn medians(rounds: &[Value], counted: &Value) -> Value {
    let median = |name: &str| {
        let figures = rounds.iter().filter_map(|round| round[name].as_f64());
        let mut figures: Vec<f64> = figures.collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    json!({
        "mb_per_s": median("mb_per_s"),
        "cpu_ms_per_mb": median("cpu_ms_per_mb"),
        "allocations_per_kv": counted["allocations_per_kv"],
        "small_get_p50_ms": median("p50_ms"),
        "small_get_p99_ms": median("p99_ms"),
        "small_get_max_ms": median("max_ms"),
    })
}

fn run(program: &LoadProgram, name: &str, client: &str, endpoint: &str, readers: &str) -> Value {
    // The programs for large ranges are beside the load program.
    let load = program.command("", &[]);
    let path = std::path::Path::new(load.get_program()).with_file_name(name);
    let secs = list("LARGE_SECS", "1").remove(0);
    let mut command = Command::new(path);
    command.args([format!("client={client}"), format!("endpoint={endpoint}")]);
    command.args([
        format!("readers={readers}"),
        format!("secs={secs}"),
        "key=large".to_owned(),
    ]);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .expect("start the load program");
    assert!(
        output.status.success(),
        "{client} failed with {readers} readers"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.trim()).expect("the load program prints JSON")
}

/// Prints the figures of a workload, and returns whether the targets are met.
fn print(server: &str, mib: usize, readers: &str, results: &[(&str, Value); 2]) -> bool {
    println!("\n{mib} MiB, {readers} at once, {server}");
    println!(
        "{:<14}{:>10}{:>12}{:>12}{:>34}",
        "", "MB/s", "CPU ms/MB", "allocs/kv", "small get p50/p99/max ms"
    );
    let figure = |result: &Value, name: &str| result[name].as_f64().unwrap_or(f64::NAN);
    for (client, result) in results {
        println!(
            "{client:<14}{:>10.0}{:>12.3}{:>12.3}{:>12.2}/{:>8.2}/{:>8.2}",
            figure(result, "mb_per_s"),
            figure(result, "cpu_ms_per_mb"),
            figure(result, "allocations_per_kv"),
            figure(result, "small_get_p50_ms"),
            figure(result, "small_get_p99_ms"),
            figure(result, "small_get_max_ms"),
        );
    }
    let ratio = |name: &str| figure(&results[0].1, name) / figure(&results[1].1, name);
    let checked = |name: &str, figure: f64, met: bool, target: &str| {
        println!("{name} {figure:.2} (target {target}): {}", verdict(met));
        met
    };
    let (rate, allocations) = (
        ratio("mb_per_s"),
        figure(&results[0].1, "allocations_per_kv"),
    );
    println!("MB/s {rate:.2} x, CPU {:.2} x", ratio("cpu_ms_per_mb"));
    let mut met = checked(
        "allocations per kv",
        allocations,
        allocations <= 1.0,
        "<= 1.0",
    );
    if server == "etcd" {
        return met;
    }
    if readers == "1" {
        met &= checked("ratio of MB/s", rate, rate >= MIN_RATE, ">= 1.5");
    } else {
        let late = figure(&results[0].1, "small_get_p99_ms");
        met &= checked(
            "p99 of the small get, ms",
            late,
            late <= MAX_STALL_MS,
            "<= 100",
        );
    }
    met
}
