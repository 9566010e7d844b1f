//! Measures bulk operations on three real members: an import, reads of many keys, and an export, compared with
//! etcd-client and etcdrs, which send one request per key.
//!
//! `cargo bench --bench bulk` takes about two minutes. All clients run one after the other in every round, so that
//! other load on the machine affects all of them. Ratios are ratios of medians. The export is compared with one single
//! range request of the same client, which needs memory for all keys. The bench exits with an error if a target is
//! missed. Environment variables:
//!
//! | variable | default | |
//! |---|---|---|
//! | `BULK_ROUNDS` | 3 | rounds per task |
//! | `BULK_TASKS` | import,get_many,export | |
//! | `BULK_KEYS` | 100000 | keys of the import and the export |
//! | `BULK_PEER_KEYS` | 25000 | keys that other clients import, fewer because they take longer |
//! | `BULK_READ_KEYS` | 20000 | keys of `get_many` |
//! | `BULK_VALUE` | 100 | bytes per value |

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

mod bulk_report;
#[path = "../charts/mod.rs"]
mod charts;
#[path = "../load_program/mod.rs"]
mod load_program;

use std::{
    env,
    process::{ExitCode, Stdio},
    time::Instant,
};

use bulk_report::{ClientRuns, Run, TaskResults};
use load_program::LoadProgram;
use serde_json::{Value, json};
use testbed::Cluster;

/// A client and its number of callers; bulk operations have one caller.
struct Contender {
    name: &'static str,
    client: &'static str,
    callers: usize,
    /// The task of the load program, if it differs from the measured one.
    task: Option<&'static str>,
}

const OURS: Contender = contender("actix-etcd", "ours", 1);

const PEERS: [Contender; 4] = [
    contender("etcd-client, 64 callers", "etcd-client", 64),
    contender("etcd-client, 256 callers", "etcd-client", 256),
    contender("etcdrs, 64 callers", "etcdrs", 64),
    contender("etcdrs, 256 callers", "etcdrs", 256),
];

const SINGLE_RANGE: Contender = Contender {
    name: "one single range",
    client: "ours",
    callers: 1,
    task: Some("range"),
};

const fn contender(name: &'static str, client: &'static str, callers: usize) -> Contender {
    Contender {
        name,
        client,
        callers,
        task: None,
    }
}

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).map_or(default, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
    })
}

struct Bench {
    program: LoadProgram,
    endpoints: String,
    value: String,
    runs: usize,
}

impl Bench {
    /// Runs the load program once.
    fn run(&self, contender: &Contender, task: &str, keys: usize, prefix: &str) -> Run {
        let output = self
            .program
            .command(
                "bulk",
                &[
                    ("client", contender.client),
                    ("task", contender.task.unwrap_or(task)),
                    ("callers", &contender.callers.to_string()),
                    ("runtime", "two"),
                    ("endpoints", &self.endpoints),
                    ("prefix", prefix),
                    ("keys", &keys.to_string()),
                    ("value", &self.value),
                ],
            )
            .stderr(Stdio::inherit())
            .output()
            .expect("start the load program");
        let name = contender.name;
        assert!(output.status.success(), "{name} failed: {task}");
        let text = String::from_utf8_lossy(&output.stdout);
        let output: Value =
            serde_json::from_str(text.trim()).expect("the load program prints JSON");
        let figure = |name: &str| output[name].as_f64().expect("a number in the output");
        assert_eq!(output["keys"], json!(keys), "{name}: {task} is incomplete");
        Run {
            keys_per_sec: figure("keys_per_s"),
            cpu_us_per_key: figure("cpu_us_per_key"),
            rss_growth: figure("rss_growth"),
        }
    }

    /// Measures a task with all contenders, one after the other, in every round.
    fn measure(
        &mut self,
        task: &'static str,
        contenders: &[&Contender],
        rounds: usize,
        keys: impl Fn(&Contender) -> usize,
    ) -> TaskResults {
        let mut clients: Vec<ClientRuns> = contenders
            .iter()
            .map(|contender| ClientRuns {
                client: contender.name,
                runs: Vec::new(),
            })
            .collect();
        for _ in 0..rounds {
            for (contender, results) in contenders.iter().zip(&mut clients) {
                // Each import creates new keys; the other tasks read the keys of the preparation.
                self.runs += 1;
                let prefix = match task {
                    "import" => format!("import/{}", self.runs),
                    _ => "stored".to_owned(),
                };
                let run = self.run(contender, task, keys(contender), &prefix);
                results.runs.push(run);
            }
        }
        let results = TaskResults { task, clients };
        bulk_report::print(&results);
        results
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let rounds = number("BULK_ROUNDS", 3);
    let keys = number("BULK_KEYS", 100_000);
    let peer_keys = number("BULK_PEER_KEYS", 25_000);
    let read_keys = number("BULK_READ_KEYS", 20_000);
    let tasks = env::var("BULK_TASKS").unwrap_or_else(|_| "import,get_many,export".to_owned());
    let program = LoadProgram::build();
    let cluster = Cluster::start(3).await;
    let mut bench = Bench {
        program,
        endpoints: cluster.direct_endpoints().join(","),
        value: number("BULK_VALUE", 100).to_string(),
        runs: 0,
    };
    let started = Instant::now();
    bench.run(&OURS, "import", keys.max(read_keys), "stored");
    let everyone: Vec<&Contender> = [&OURS].into_iter().chain(&PEERS).collect();
    let mut measured = Vec::new();
    for task in tasks.split(',') {
        measured.push(match task.trim() {
            "import" => bench.measure("import", &everyone, rounds, |contender| {
                if contender.client == OURS.client {
                    keys
                } else {
                    peer_keys
                }
            }),
            "get_many" => bench.measure("get_many", &everyone, rounds, |_| read_keys),
            "export" => {
                let both = [&OURS, &SINGLE_RANGE];
                bench.measure("export", &both, rounds, |_| keys.max(read_keys))
            }
            other => panic!("unknown task {other} in BULK_TASKS"),
        });
    }
    println!("\n{:.0} s in total", started.elapsed().as_secs_f64());
    let (targets, all_met) = bulk_report::check(&measured);
    let rows: Vec<Value> = measured.iter().flat_map(bulk_report::rows).collect();
    let path = load_program::result_path("bulk.json");
    let all = json!({"rows": rows, "targets": targets});
    std::fs::write(&path, all.to_string()).expect("write the result file");
    println!("{}", path.display());
    charts::draw(&path);
    ExitCode::from(u8::from(!all_met))
}
