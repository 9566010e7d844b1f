//! Measures the cost of a call: get and put, 1 to 512 callers, against a server that is never the bottleneck and
//! against real etcd, compared with etcd-client and etcdrs.
//!
//! `cargo bench --bench unary` takes about six minutes. All clients have the same three endpoints and balance their
//! calls in their own way. They run one after the other in every round, so that other load on the machine affects all
//! of them. Ratios are ratios of medians. The bench exits with an error if a target is missed.
//!
//! The application, which runs the callers, has one thread (tokio's `current_thread`) or two workers (`multi_thread`).
//! Each client runs in the same application:
//!
//! | client | |
//! |---|---|
//! | `ours` | actix-etcd as by default, on its own thread |
//! | `ours-in-place` | actix-etcd on the thread of its callers, which is an arbiter; one thread only |
//! | `ours-actor` | `Addr<Etcd>::send`; actix-etcd on its own thread, the actor on the thread of its callers; one thread only |
//! | `etcd-client`, `etcdrs` | on the runtime of the application |
//! | `go` | etcd's Go client, if `GO_CLIENT` is set; two workers only |
//!
//! The cost of `ours-actor` over `ours` is the difference of their CPU time per call at 64 callers. The difference of
//! the latencies would be 64 times that of a call, because the callers share one thread. The runtime of an arbiter is
//! `current_thread`, too, so both programs are of the same kind.
//!
//! Environment variables:
//!
//! | variable | default | |
//! |---|---|---|
//! | `UNARY_ROUNDS` | 3 | rounds per workload; four times as many for workloads with a target |
//! | `UNARY_SECS` | 0.25 | measured seconds per run |
//! | `UNARY_SERVERS` | constant,etcd | |
//! | `UNARY_OPS` | get,put | |
//! | `UNARY_CALLERS` | 1,2,8,64,512 | |
//! | `UNARY_THREADS` | one,two | threads of the application |
//! | `UNARY_CLIENTS` | all | |
//! | `GO_CLIENT` | none | path of a program that measures the Go client |
//!
//! The bench starts the Go program like the load program of the other clients:
//!
//! ```text
//! GO_CLIENT load client=go op=get callers=64 runtime=two endpoints=http://127.0.0.1:1,http://127.0.0.1:2 warmup=0.1 secs=0.25
//! ```
//!
//! It runs `callers` goroutines with one client, each with its own key and one call (`op` is `get` or `put`) at a time,
//! with `GOMAXPROCS` 2. It ignores the first `warmup` seconds, measures for `secs` seconds, prints one line, and exits
//! with status 0:
//!
//! ```text
//! {"calls_per_s":51234.5,"p50_us":1180.21,"p99_us":2950.07,"cpu_us":38.112,"calls":12808,"errors":{}}
//! ```
//!
//! `calls` counts the successful calls. `cpu_us` is the user and system time of the process per successful call.
//! `errors` has the number of failed calls by kind.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

#[path = "../charts/mod.rs"]
mod charts;
mod constant_servers;
#[path = "../load_program/mod.rs"]
mod load_program;
mod plan;
mod results;
mod rounds;
mod table;
mod targets;

use std::{process::ExitCode, time::Instant};

use constant_servers::ConstantServers;
use load_program::LoadProgram;
use plan::Plan;
use results::WorkloadResults;
use serde_json::{Value, json};
use testbed::Cluster;

/// The client that all others are compared with.
const REFERENCE_CLIENT: &str = "etcd-client";
/// Workloads with a target are measured this many times as often.
const TARGET_ROUNDS_FACTOR: usize = 4;

#[tokio::main]
async fn main() -> ExitCode {
    ConstantServers::run_if_child();
    let plan = Plan::from_env();
    let program = LoadProgram::build();
    let constant_servers = ConstantServers::start();
    let needs_cluster = |plan: &Plan| plan.workloads.iter().any(|each| each.server == "etcd");
    let cluster = if needs_cluster(&plan) {
        Some(Cluster::start(3).await)
    } else {
        None
    };
    let started = Instant::now();
    let mut measured: Vec<WorkloadResults> = Vec::new();
    for workload in &plan.workloads {
        let endpoints = match (workload.server.as_str(), &cluster) {
            ("etcd", Some(cluster)) => cluster.direct_endpoints().join(","),
            ("constant", _) => constant_servers.endpoints().to_owned(),
            (other, _) => {
                panic!("unknown server {other}: set UNARY_SERVERS to `constant` or `etcd`")
            }
        };
        let factor = if targets::apply_to(workload) {
            TARGET_ROUNDS_FACTOR
        } else {
            1
        };
        let row = rounds::measure(&program, &plan, workload, &endpoints, plan.rounds * factor);
        table::print(&row);
        measured.push(row);
    }
    println!("\n{:.0} s in total", started.elapsed().as_secs_f64());
    let (targets, all_met) = targets::check(&measured);
    let path = load_program::result_path("unary.json");
    let rows: Vec<Value> = measured.iter().map(table::json).collect();
    let all = json!({"rows": rows, "targets": targets});
    std::fs::write(&path, all.to_string()).expect("write the result file");
    println!("{}", path.display());
    charts::draw(&path);
    ExitCode::from(u8::from(!all_met))
}
