//! Measures memory per watch, lease, client, connection and call, and how the cost grows with their numbers.
//!
//! `cargo bench --bench growth [-- memory|idle|watches|leases|callers|endpoints]`. A run of all parts writes
//! `growth.json` and its picture.
//!
//! | part | measures | target |
//! |---|---|---|
//! | `memory` | resident memory per watch with one task per watch, and per lease | ≤ 4 KiB, ≤ 2 KiB |
//! | `memory` | resident memory per client, connection and call in flight | none |
//! | `idle` | CPU of idle watches that are delivered to an actor | ≤ 0.5 % of a core more than as streams |
//! | `watches` | CPU to open a watch in a task and to receive its first event | linear |
//! | `leases` | CPU per keepalive | linear |
//! | `callers` | CPU per call | linear |
//! | `endpoints` | CPU per call, of one caller and of 16 callers per endpoint; CPU to connect an endpoint | linear |
//!
//! **Linear** means: the cost per unit at the largest number of units is at most 1.5 × the lowest cost per unit at a
//! smaller number. Numbers below a base are only printed, because there the fixed cost of a client dominates: its own
//! wakeups and those of its caller, which many units share.
//!
//! Each figure is that of a process that runs only the client. The server is another process, which sends constant
//! responses; several endpoints are ports of the same process. The client runs in its default mode, on a thread of its
//! own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench panics on failure, and its figures are rounded"
)]

mod call_load;
#[path = "../charts/mod.rs"]
mod charts;
mod client_process;
mod growth_rule;
mod idle_watches;
mod lease_load;
#[path = "../load_program/mod.rs"]
#[expect(dead_code, reason = "this bench starts no load program")]
mod load_program;
#[path = "../watch/memory.rs"]
#[expect(dead_code, reason = "only the watch bench uses the peak")]
mod memory;
mod memory_table;
mod usage;
mod watch_load;

use std::process::ExitCode;

use serde_json::json;
use testbed::{FastServer, WatchPlan};

use client_process::Load;
use growth_rule::Growth;

const WATCHES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const LEASES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const CALLERS: [usize; 7] = [1, 4, 16, 64, 256, 1_024, 4_096];
const ENDPOINTS: [usize; 5] = [1, 3, 5, 9, 100];
/// Number of callers per endpoint, so that the load of a connection is the same for any number of endpoints.
const CALLERS_PER_ENDPOINT: usize = 16;
/// Rounds of measurements that take two seconds.
const SHORT_ROUNDS: usize = 2;

fn main() -> ExitCode {
    FastServer::run_if_child();
    client_process::run_if_child();
    let selected = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let is_selected = |name: &str| selected.as_deref().is_none_or(|part| part == name);
    let plan = WatchPlan {
        events: 1,
        ..WatchPlan::default()
    };
    let most = ENDPOINTS.into_iter().max().unwrap_or(1);
    let server = FastServer::start_on_ports(plan, most);
    let one = &server.endpoints()[..1];
    let mut all_met = true;
    let (mut memory, mut idle, mut growths) = (Vec::new(), Vec::new(), Vec::new());
    if is_selected("memory") {
        let (met, rows) = memory_table::measure();
        all_met &= met;
        memory = rows;
    }
    if is_selected("idle") {
        let (met, rows) = idle_watches::measure(one);
        all_met &= met;
        idle = rows;
    }
    let parts: [(&str, Measure); 4] = [
        ("watches", watches),
        ("leases", leases),
        ("callers", callers),
        ("endpoints", endpoints),
    ];
    for (_, measure) in parts.iter().filter(|(name, _)| is_selected(name)) {
        for growth in measure(server.endpoints()) {
            let (met, json) = growth.report();
            all_met &= met;
            growths.push(json);
        }
    }
    if selected.is_none() {
        let path = load_program::result_path("growth.json");
        let results = json!({ "memory": memory, "idle": idle, "growth": growths });
        std::fs::write(&path, results.to_string()).expect("write the result file");
        println!("{}", path.display());
        charts::draw(&path);
    }
    if all_met {
        ExitCode::SUCCESS
    } else {
        eprintln!("a target was missed");
        ExitCode::FAILURE
    }
}

/// Measures one part on a server with these endpoints.
type Measure = fn(&[String]) -> Vec<Growth>;

fn watches(endpoints: &[String]) -> Vec<Growth> {
    let cost = |watches| {
        let figures = Load::WatchTasks.measure(watches, &endpoints[..1]);
        figures.get("cpu_us")
    };
    let name = "CPU µs per watch, opened and first event";
    vec![Growth::measure("watches", name, 1_000, (&WATCHES, 1), cost)]
}

fn leases(endpoints: &[String]) -> Vec<Growth> {
    let cost = |leases| {
        let figures = Load::Leases.measure(leases, &endpoints[..1]);
        figures.get("cpu_us")
    };
    let name = "CPU µs per keepalive";
    vec![Growth::measure("leases", name, 1_000, (&LEASES, 1), cost)]
}

fn callers(endpoints: &[String]) -> Vec<Growth> {
    let cost = |callers| {
        let figures = Load::Callers.measure(callers, &endpoints[..1]);
        figures.get("cpu_us")
    };
    let numbers = (CALLERS.as_slice(), SHORT_ROUNDS);
    vec![Growth::measure(
        "callers",
        "CPU µs per call",
        64,
        numbers,
        cost,
    )]
}

fn endpoints(endpoints: &[String]) -> Vec<Growth> {
    let figure = |load: Load, units, number: usize, name: &str| {
        load.measure(units, &endpoints[..number]).get(name)
    };
    let one_caller = |number| figure(Load::Callers, 1, number, "cpu_us");
    let many_callers = |number| {
        let callers = CALLERS_PER_ENDPOINT * number;
        figure(Load::Callers, callers, number, "cpu_us")
    };
    let connecting = |number: usize| {
        let clients = 20_usize.div_ceil(number).max(2);
        figure(Load::Clients, clients, number, "cpu_us") / number as f64
    };
    let numbers = (ENDPOINTS.as_slice(), SHORT_ROUNDS);
    vec![
        Growth::measure(
            "endpoints",
            "CPU µs per call, 1 caller",
            1,
            numbers,
            one_caller,
        ),
        Growth::measure(
            "endpoints",
            "CPU µs per call, 16 callers per endpoint",
            1,
            numbers,
            many_callers,
        ),
        Growth::measure(
            "endpoints",
            "CPU µs to connect, per endpoint",
            1,
            (&ENDPOINTS, 1),
            connecting,
        ),
    ]
}
