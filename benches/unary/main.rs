//! What a call costs: get and put, 1 to 512 callers, against a server that is never the bottleneck and against real etcd,
//! beside etcd-client and etcdrs.
//!
//! `cargo bench --bench unary` takes about four minutes. All clients have the same three endpoints and spread their calls as
//! they do. They run one after the other in every round, so a machine that is busy now and then does no harm; a ratio is
//! that of the medians. A promise that is broken makes it end with an error. Longer or less, by environment:
//!
//! | variable | default | |
//! |---|---|---|
//! | `UNARY_ROUNDS` | 2 | rounds of everything; where a figure is promised, four times as many |
//! | `UNARY_SECS` | 0.4 | seconds a run is measured |
//! | `UNARY_SERVERS` | scripted,etcd | |
//! | `UNARY_OPS` | get,put | |
//! | `UNARY_CALLERS` | 1,8,64,512 | |
//! | `UNARY_THREADS` | one,two | the client and its callers on one thread, or on two |
//! | `UNARY_CLIENTS` | ours,etcd-client,etcdrs | |

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that can't go on says why and ends"
)]

#[path = "../program/mod.rs"]
mod program;
mod promises;
mod table;
mod wire;

use std::{
    env, fmt,
    process::{ExitCode, Stdio},
    time::Instant,
};

use program::Program;
use serde_json::{Value, json};
use testbed::Cluster;
use wire::WireServer;

/// What every client is compared with.
const BASE: &str = "etcd-client";
/// A figure that is promised is measured this many times as often.
const CARE: usize = 4;

/// One row of the grid: all clients do this, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    server: String,
    op: String,
    callers: usize,
    threads: String,
}

impl fmt::Display for Cell {
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

/// What one run of one client gave.
#[derive(Clone, Debug)]
struct Figures {
    calls: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
    errors: Value,
}

/// A client's figures, a round each. Rounds are the same for all clients of a cell.
struct Series {
    client: String,
    rounds: Vec<Figures>,
}

struct Measured {
    cell: Cell,
    series: Vec<Series>,
}

impl Measured {
    fn of(&self, client: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.client == client)
    }

    /// How a client stands to etcd-client: the ratio of the medians.
    fn ratio(&self, client: &str, figure: impl Fn(&Figures) -> f64) -> Option<f64> {
        let (mine, base) = (self.of(client)?, self.of(BASE)?);
        Some(mine.median(&figure) / base.median(&figure))
    }
}

impl Series {
    fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
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
    cells: Vec<Cell>,
    clients: Vec<String>,
}

impl Plan {
    fn from_env() -> Self {
        let list = |name: &str, default: &str| -> Vec<String> {
            let text = env::var(name).unwrap_or_else(|_| default.to_owned());
            text.split(',').map(|word| word.trim().to_owned()).collect()
        };
        let mut cells = Vec::new();
        for server in list("UNARY_SERVERS", "scripted,etcd") {
            for op in list("UNARY_OPS", "get,put") {
                for callers in list("UNARY_CALLERS", "1,8,64,512") {
                    for threads in list("UNARY_THREADS", "one,two") {
                        cells.push(Cell {
                            server: server.clone(),
                            op: op.clone(),
                            callers: callers.parse().expect("UNARY_CALLERS are numbers"),
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
            cells,
            clients: list("UNARY_CLIENTS", "ours,etcd-client,etcdrs"),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    WireServer::run_if_child();
    let plan = Plan::from_env();
    let program = Program::build();
    let scripted = WireServer::start();
    let cluster = if plan.cells.iter().any(|cell| cell.server == "etcd") {
        Some(Cluster::start(3).await)
    } else {
        None
    };
    let started = Instant::now();
    let mut measured: Vec<Measured> = Vec::new();
    for cell in &plan.cells {
        let endpoints = match (cell.server.as_str(), &cluster) {
            ("etcd", Some(cluster)) => cluster.direct_endpoints().join(","),
            ("scripted", _) => scripted.endpoints().to_owned(),
            (other, _) => panic!("UNARY_SERVERS={other}: `scripted` and `etcd` there are"),
        };
        let care = if promises::concern(cell) { CARE } else { 1 };
        let row = measure(&program, &plan, cell, &endpoints, plan.rounds * care);
        table::print(&row);
        measured.push(row);
    }
    println!("\n{:.0} s in all", started.elapsed().as_secs_f64());
    let (promises, all_hold) = promises::check(&measured);
    let path = program::results("unary.json");
    let rows: Vec<Value> = measured.iter().map(table::json).collect();
    let all = json!({"rows": rows, "promises": promises});
    std::fs::write(&path, all.to_string()).expect("the result can be written");
    println!("{}", path.display());
    ExitCode::from(u8::from(!all_hold))
}

fn measure(
    program: &Program,
    plan: &Plan,
    cell: &Cell,
    endpoints: &str,
    rounds: usize,
) -> Measured {
    let mut series: Vec<Series> = plan
        .clients
        .iter()
        .map(|client| Series {
            client: client.clone(),
            rounds: Vec::new(),
        })
        .collect();
    for round in 0..rounds {
        // Whoever comes first in one round comes last in another.
        let shift = round % series.len();
        series.rotate_left(shift);
        for one in &mut series {
            let figures = run(program, plan, cell, endpoints, &one.client);
            one.rounds.push(figures);
        }
        series.rotate_right(shift);
    }
    Measured {
        cell: cell.clone(),
        series,
    }
}

fn run(program: &Program, plan: &Plan, cell: &Cell, endpoints: &str, client: &str) -> Figures {
    let output = program
        .command(
            "load",
            &[
                ("client", client),
                ("op", &cell.op),
                ("callers", &cell.callers.to_string()),
                ("runtime", &cell.threads),
                ("endpoints", endpoints),
                ("warmup", "0.15"),
                ("secs", &plan.secs),
            ],
        )
        .stderr(Stdio::inherit())
        .output()
        .expect("the load program can be started");
    assert!(output.status.success(), "{client} fails: {cell}");
    let text = String::from_utf8_lossy(&output.stdout);
    let told: Value = serde_json::from_str(text.trim()).expect("the load program prints JSON");
    let number = |name: &str| told[name].as_f64().expect("a figure is a number");
    assert!(
        number("calls") > 0.0,
        "{client} gets nothing but errors: {cell}: {told}"
    );
    Figures {
        calls: number("calls_per_s"),
        p50: number("p50_us"),
        p99: number("p99_us"),
        cpu: number("cpu_us"),
        errors: told["errors"].clone(),
    }
}
