//! Measures the cost of a call: get and put, 1 to 512 callers, against a server that is never the bottleneck and
//! against real etcd, compared with etcd-client and etcdrs.
//!
//! `cargo bench --bench unary` takes about four minutes. All clients have the same three endpoints and balance their
//! calls in their own way. They run one after the other in every round, so that other load on the machine affects all
//! of them. Ratios are ratios of medians. The bench exits with an error if a target is missed. Environment variables:
//!
//! | variable | default | |
//! |---|---|---|
//! | `UNARY_ROUNDS` | 2 | rounds per workload; four times as many for workloads with a target |
//! | `UNARY_SECS` | 0.4 | measured seconds per run |
//! | `UNARY_SERVERS` | constant,etcd | |
//! | `UNARY_OPS` | get,put | |
//! | `UNARY_CALLERS` | 1,8,64,512 | |
//! | `UNARY_THREADS` | one,two | threads of the client and its callers together |
//! | `UNARY_CLIENTS` | ours,etcd-client,etcdrs | |

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

mod constant_servers;
#[path = "../load_program/mod.rs"]
mod load_program;
mod table;
mod targets;

use std::{
    env, fmt,
    process::{ExitCode, Stdio},
    time::Instant,
};

use constant_servers::ConstantServers;
use load_program::LoadProgram;
use serde_json::{Value, json};
use testbed::Cluster;

/// The client that all others are compared with.
const REFERENCE_CLIENT: &str = "etcd-client";
/// Workloads with a target are measured this many times as often.
const TARGET_ROUNDS_FACTOR: usize = 4;

/// One workload, which all clients run one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Workload {
    server: String,
    op: String,
    callers: usize,
    threads: String,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, server, callers, threads) = (&self.op, &self.server, self.callers, &self.threads);
        let plural = |many: bool| if many { "s" } else { "" };
        let (c, t) = (plural(callers > 1), plural(threads == "two"));
        write!(
            f,
            "{op}, {server}, {callers} caller{c}, {threads} thread{t}"
        )
    }
}

/// Results of one run of one client.
#[derive(Clone, Debug)]
struct Measurement {
    calls_per_sec: f64,
    /// Latency in microseconds.
    p50: f64,
    p99: f64,
    /// CPU time per call in microseconds.
    cpu: f64,
    errors: Value,
}

/// Measurements of one client, one per round.
struct ClientResults {
    client: String,
    rounds: Vec<Measurement>,
}

/// Measurements of all clients for one workload.
struct WorkloadResults {
    workload: Workload,
    clients: Vec<ClientResults>,
}

impl WorkloadResults {
    fn of(&self, client: &str) -> Option<&ClientResults> {
        self.clients.iter().find(|results| results.client == client)
    }

    /// Returns the ratio of a client's median to that of the reference client.
    fn ratio(&self, client: &str, figure: impl Fn(&Measurement) -> f64) -> Option<f64> {
        let (client, reference) = (self.of(client)?, self.of(REFERENCE_CLIENT)?);
        Some(client.median(&figure) / reference.median(&figure))
    }
}

impl ClientResults {
    fn median(&self, figure: impl Fn(&Measurement) -> f64) -> f64 {
        median(self.rounds.iter().map(figure))
    }
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => numbers[count / 2],
        count => f64::midpoint(numbers[count / 2 - 1], numbers[count / 2]),
    }
}

struct Plan {
    rounds: usize,
    secs: String,
    workloads: Vec<Workload>,
    clients: Vec<String>,
}

impl Plan {
    fn from_env() -> Self {
        let list = |name: &str, default: &str| -> Vec<String> {
            let text = env::var(name).unwrap_or_else(|_| default.to_owned());
            text.split(',').map(|word| word.trim().to_owned()).collect()
        };
        let mut workloads = Vec::new();
        for server in list("UNARY_SERVERS", "constant,etcd") {
            for op in list("UNARY_OPS", "get,put") {
                for callers in list("UNARY_CALLERS", "1,8,64,512") {
                    for threads in list("UNARY_THREADS", "one,two") {
                        workloads.push(Workload {
                            server: server.clone(),
                            op: op.clone(),
                            callers: callers.parse().expect("UNARY_CALLERS is a list of numbers"),
                            threads,
                        });
                    }
                }
            }
        }
        let rounds = list("UNARY_ROUNDS", "2").remove(0);
        Self {
            rounds: rounds.parse().expect("UNARY_ROUNDS is a number"),
            secs: list("UNARY_SECS", "0.4").remove(0),
            workloads,
            clients: list("UNARY_CLIENTS", "ours,etcd-client,etcdrs"),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    ConstantServers::run_if_child();
    let plan = Plan::from_env();
    let program = LoadProgram::build();
    let constant_servers = ConstantServers::start();
    let cluster = if plan
        .workloads
        .iter()
        .any(|workload| workload.server == "etcd")
    {
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
        let row = measure(&program, &plan, workload, &endpoints, plan.rounds * factor);
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
    ExitCode::from(u8::from(!all_met))
}

fn measure(
    program: &LoadProgram,
    plan: &Plan,
    workload: &Workload,
    endpoints: &str,
    rounds: usize,
) -> WorkloadResults {
    let mut clients: Vec<ClientResults> = plan
        .clients
        .iter()
        .map(|client| ClientResults {
            client: client.clone(),
            rounds: Vec::new(),
        })
        .collect();
    for round in 0..rounds {
        // Each round starts with another client.
        let shift = round % clients.len();
        clients.rotate_left(shift);
        for results in &mut clients {
            let measurement = run(program, plan, workload, endpoints, &results.client);
            results.rounds.push(measurement);
        }
        clients.rotate_right(shift);
    }
    WorkloadResults {
        workload: workload.clone(),
        clients,
    }
}

fn run(
    program: &LoadProgram,
    plan: &Plan,
    workload: &Workload,
    endpoints: &str,
    client: &str,
) -> Measurement {
    let output = program
        .command(
            "load",
            &[
                ("client", client),
                ("op", &workload.op),
                ("callers", &workload.callers.to_string()),
                ("runtime", &workload.threads),
                ("endpoints", endpoints),
                ("warmup", "0.15"),
                ("secs", &plan.secs),
            ],
        )
        .stderr(Stdio::inherit())
        .output()
        .expect("start the load program");
    assert!(output.status.success(), "{client} failed: {workload}");
    let text = String::from_utf8_lossy(&output.stdout);
    let output: Value = serde_json::from_str(text.trim()).expect("the load program prints JSON");
    let number = |name: &str| output[name].as_f64().expect("a number in the output");
    assert!(
        number("calls") > 0.0,
        "no call of {client} succeeded: {workload}: {output}"
    );
    Measurement {
        calls_per_sec: number("calls_per_s"),
        p50: number("p50_us"),
        p99: number("p99_us"),
        cpu: number("cpu_us"),
        errors: output["errors"].clone(),
    }
}
