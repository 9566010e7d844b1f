//! What a failing member costs: how long nothing succeeds, beyond what no client could have avoided.
//!
//! Three real members behind proxies, four writers without pause and two readers, 5 s a call; each fault on each member in
//! turn, 4 s each, 2 s between. *Ideal* is what a client sees that always knows which member serves; see [`ideal`].
//! *Excess* is the longest gap between two successes beyond the ideal's in the same window, the worst of three members.
//!
//! `cargo bench --bench failover` takes about six minutes: each client gets a fresh cluster and the same faults. Less, by
//! environment: `FAILOVER_CLIENTS=ours`, `FAILOVER_FAULTS=kill,stop,freeze,isolate,reset,down`, `FAILOVER_MEMBERS=0`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that can't go on says why and ends"
)]

mod calls;
mod faults;
mod ideal;
#[path = "../program/mod.rs"]
mod program;
mod report;

use std::{env, process::ExitCode, time::Duration};

use calls::{Call, Running};
use faults::Fault;
use ideal::Ideal;
use program::Program;
use testbed::Cluster;

/// This client, among those that take part.
const OURS: &str = "ours";
const WRITERS: usize = 4;
const READERS: usize = 2;

/// One fault on one member (or on all), and what came of it.
struct Window {
    fault: Fault,
    member: usize,
    from: u128,
    until: u128,
}

/// All windows of one client on one cluster.
struct Run {
    client: String,
    windows: Vec<Window>,
    writes: Vec<Call>,
    reads: Vec<Call>,
    ideal: Vec<u128>,
    truth: report::Truth,
}

/// Ends with an error where one of this client's own promises is broken, once everything is told.
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
    let faults: Vec<Fault> = list("FAILOVER_FAULTS", "kill,stop,freeze,isolate,reset,down")
        .iter()
        .map(|name| Fault::named(name))
        .collect();
    let members: Vec<usize> = list("FAILOVER_MEMBERS", "0,1,2")
        .iter()
        .map(|text| text.parse().expect("FAILOVER_MEMBERS are numbers"))
        .collect();
    let program = Program::build();
    let mut runs = Vec::new();
    for client in clients {
        let run = run(&program, &client, &faults, &members).await;
        report::print(&run);
        runs.push(run);
    }
    let path = program::results("failover.json");
    let all: Vec<_> = runs.iter().map(report::json).collect();
    let text = serde_json::Value::from(all).to_string();
    std::fs::write(&path, text).expect("the result can be written");
    println!("\n{}", path.display());
    let broken = runs
        .iter()
        .any(|run| run.client == OURS && !report::holds(run));
    ExitCode::from(u8::from(broken))
}

async fn run(program: &Program, client: &str, faults: &[Fault], members: &[usize]) -> Run {
    println!("\n{client}: a fresh cluster");
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
            // The others have no deadline of their own.
            arguments.push(("timeout", "5".to_owned()));
        }
        Running::start(program, &arguments)
    };
    let writers = start("put", WRITERS, "0");
    let readers = start("get", READERS, "0.002");
    let ideal = Ideal::start(&cluster);
    for running in [&writers, &readers] {
        running.wait_for_success().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut windows = Vec::new();
    for fault in faults {
        let targets = if fault.is_for_all() { &[0] } else { members };
        for member in targets {
            let from = calls::now();
            fault.work(&cluster, *member).await;
            windows.push(Window {
                fault: *fault,
                member: *member,
                from,
                until: calls::now(),
            });
        }
    }
    let ideal = ideal.stop().await;
    let (puts, gets) = (writers.stop(), readers.stop());
    let truth = report::Truth::new(&puts, &cluster.history("put/").await);
    Run {
        client: client.to_owned(),
        windows,
        writes: puts,
        reads: gets,
        ideal,
        truth,
    }
}
