//! Measures failover: how long no call succeeds during a fault, beyond what no client can avoid.
//!
//! Three real members behind proxies, four writers without pause and two readers, with a timeout of 5 s per call. Each
//! fault is injected into each member in turn, for 4 s, with a pause of 2 s. The *baseline* is the best that any client
//! could achieve; see [`baseline`]. The *excess* is the longest gap between two successes minus the longest gap of the
//! baseline in the same window; the worst of the three members counts.
//!
//! `cargo bench --bench failover` takes about six minutes. Each client gets a new cluster and the same faults. The
//! bench exits with an error if this client misses a bound. These environment variables select less:
//! `FAILOVER_CLIENTS=ours`, `FAILOVER_FAULTS=kill,stop,freeze,isolate,reset,down`, `FAILOVER_MEMBERS=0`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

mod baseline;
#[path = "../charts/mod.rs"]
mod charts;
mod clock;
mod faults;
mod load_process;
#[path = "../load_program/mod.rs"]
mod load_program;
mod member_fault;
mod report;

use std::{env, process::ExitCode, time::Duration};

use baseline::Baseline;
use faults::ClusterFault;
use load_process::{CallRecord, LoadProcess};
use load_program::LoadProgram;
use testbed::Cluster;

/// Name of this client among the measured clients.
const OURS: &str = "ours";
const WRITERS: usize = 4;
const READERS: usize = 2;

/// Time window of one fault on one member, or on all.
struct Window {
    fault: ClusterFault,
    member: usize,
    from: u128,
    until: u128,
}

/// Results of one client on one cluster.
struct Run {
    client: String,
    windows: Vec<Window>,
    writes: Vec<CallRecord>,
    reads: Vec<CallRecord>,
    /// Times of the successes of the baseline.
    baseline: Vec<u128>,
    write_check: report::WriteCheck,
}

#[tokio::main]
async fn main() -> ExitCode {
    let list = |name: &str, default: &str| -> Vec<String> {
        let text = env::var(name).unwrap_or_else(|_| default.to_owned());
        text.split(',').map(|word| word.trim().to_owned()).collect()
    };
    let mut clients = list("FAILOVER_CLIENTS", "all");
    if clients == ["all"] {
        clients = [OURS, "etcdrs", "etcd-client"].map(str::to_owned).to_vec();
    }
    let faults: Vec<ClusterFault> = list("FAILOVER_FAULTS", "kill,stop,freeze,isolate,reset,down")
        .iter()
        .map(|name| ClusterFault::parse(name))
        .collect();
    let members: Vec<usize> = list("FAILOVER_MEMBERS", "0,1,2")
        .iter()
        .map(|text| text.parse().expect("FAILOVER_MEMBERS is a list of numbers"))
        .collect();
    let program = LoadProgram::build();
    let mut runs = Vec::new();
    for client in clients {
        let run = run(&program, &client, &faults, &members).await;
        report::print(&run);
        runs.push(run);
    }
    let path = load_program::result_path("failover.json");
    let all: Vec<_> = runs.iter().map(report::json).collect();
    let text = serde_json::Value::from(all).to_string();
    std::fs::write(&path, text).expect("write the result file");
    println!("\n{}", path.display());
    charts::draw(&path);
    let missed = runs
        .iter()
        .any(|run| run.client == OURS && !report::all_bounds_met(run));
    ExitCode::from(u8::from(missed))
}

async fn run(
    program: &LoadProgram,
    client: &str,
    faults: &[ClusterFault],
    members: &[usize],
) -> Run {
    println!("\n{client}, on a new cluster");
    let cluster = Cluster::start(3).await;
    let endpoints = cluster.endpoints().join(",");
    let start = |op: &str, callers: usize, pause: &str| {
        let mut arguments = vec![
            ("client", client.to_owned()),
            ("op", op.to_owned()),
            ("callers", callers.to_string()),
            ("runtime", "two".to_owned()),
            ("endpoints", endpoints.clone()),
            ("prefix", op.to_owned()),
            ("pause", pause.to_owned()),
        ];
        if client != OURS {
            // The other clients have no default deadline.
            arguments.push(("timeout", "5".to_owned()));
        }
        LoadProcess::start(program, &arguments)
    };
    let writers = start("put", WRITERS, "0");
    let readers = start("get", READERS, "0.002");
    let baseline = Baseline::start(&cluster);
    for process in [&writers, &readers] {
        process.wait_for_success().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut windows = Vec::new();
    for fault in faults {
        let targets = if fault.affects_all_members() {
            &[0]
        } else {
            members
        };
        for member in targets {
            let from = clock::now();
            fault.inject(&cluster, *member).await;
            windows.push(Window {
                fault: *fault,
                member: *member,
                from,
                until: clock::now(),
            });
        }
    }
    let baseline = baseline.stop().await;
    let (puts, gets) = (writers.stop(), readers.stop());
    let write_check = report::WriteCheck::new(&puts, &cluster.history("put/").await);
    Run {
        client: client.to_owned(),
        windows,
        writes: puts,
        reads: gets,
        baseline,
        write_check,
    }
}
