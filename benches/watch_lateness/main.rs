//! Measures how late events arrive while one member fails, for plain and hedged watches and for etcd-client.
//!
//! Three real members behind proxies. Each client is a process with one watch and nothing else. A writer puts a value
//! every 10 ms on a member that does not fail and that leads the cluster, so no election is part of the result. Each
//! fault is injected into each member in turn for 4 s; all clients are measured at the same time. The *lateness* of an
//! event is the time from the response to its put until its arrival; the worst of the three members counts. The
//! *control* is a plain watch on the member of the writer: its lateness is that of the machine. Bounds hold for the
//! excess over the largest lateness of the control.
//!
//! `cargo bench --bench watch_lateness` takes about three minutes. It exits with an error if a bound is missed.
//! `LATENESS_FAULTS=kill,stop,freeze,isolate,reset,slow` selects faults; with an empty list, only the cost of a hedged
//! watch is measured.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unchecked_time_subtraction,
    reason = "a bench panics on failure"
)]

mod arrivals;
mod cost;
mod lateness_fault;
mod lateness_report;
#[path = "../load_program/mod.rs"]
#[expect(dead_code, reason = "other benches write their results to files")]
mod load_program;
#[path = "../failover/member_fault.rs"]
mod member_fault;
#[path = "../watch/memory.rs"]
#[expect(dead_code, reason = "another bench prints the peak")]
mod memory;
mod steady_writer;

use std::{process::ExitCode, time::Duration};

use arrivals::WatchProcess;
use lateness_fault::LatenessFault;
use lateness_report::{Bounds, Lateness};
use load_program::LoadProgram;
use steady_writer::SteadyWriter;
use testbed::Cluster;

/// A client and its bounds.
struct MeasuredClient {
    name: &'static str,
    arguments: &'static [(&'static str, &'static str)],
    bounds: Bounds,
}

const CLIENTS: [MeasuredClient; 3] = [
    MeasuredClient {
        name: "ours, hedged",
        arguments: &[("client", "ours"), ("hedged", "true")],
        bounds: Bounds {
            all: Some(100),
            silent: Some(100),
        },
    },
    MeasuredClient {
        name: "ours, plain",
        arguments: &[("client", "ours")],
        bounds: Bounds {
            all: None,
            silent: Some(1500),
        },
    },
    MeasuredClient {
        name: "etcd-client",
        arguments: &[("client", "etcd-client")],
        bounds: Bounds {
            all: None,
            silent: None,
        },
    },
];
/// Time after a fault, in which clients return to the member.
const PAUSE_AFTER_FAULT: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    cost::WatchHolder::run_if_child();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("start the runtime");
    runtime.block_on(measure())
}

async fn measure() -> ExitCode {
    let faults = std::env::var("LATENESS_FAULTS");
    let faults = faults
        .as_deref()
        .unwrap_or("kill,stop,freeze,isolate,reset,slow");
    let faults: Vec<LatenessFault> = faults
        .split(',')
        .filter(|name| !name.is_empty())
        .map(LatenessFault::parse)
        .collect();
    let mut all_met = true;
    if !faults.is_empty() {
        let program = LoadProgram::build();
        all_met = measure_lateness(&program, &faults).await;
    }
    cost::print_traffic().await;
    cost::print_memory().await;
    if all_met {
        ExitCode::SUCCESS
    } else {
        eprintln!("a bound was missed");
        ExitCode::FAILURE
    }
}

/// Returns whether all bounds were met.
async fn measure_lateness(program: &LoadProgram, faults: &[LatenessFault]) -> bool {
    let cluster = Cluster::start(3).await;
    let endpoints = cluster.endpoints().join(",");
    let start = |arguments: &[(&str, &str)]| {
        let mut arguments = arguments.to_vec();
        arguments.extend([("endpoints", endpoints.as_str()), ("prefix", "lateness/")]);
        WatchProcess::start(program, &arguments)
    };
    let watches: Vec<WatchProcess> = CLIENTS
        .iter()
        .map(|client| start(client.arguments))
        .collect();
    for watch in &watches {
        watch.wait_until_ready().await;
    }
    tokio::time::sleep(PAUSE_AFTER_FAULT).await;
    println!("lateness in ms: max and p99 of the worst member");
    let mut all_met = true;
    for fault in faults {
        let mut control = Lateness::default();
        let mut lateness: [Lateness; CLIENTS.len()] = Default::default();
        for member in 0..3 {
            let writer_member = (member + 1) % 3;
            cluster.move_leader(writer_member).await;
            let writer =
                SteadyWriter::start(&cluster.member(writer_member).direct_endpoint()).await;
            fault.inject(&cluster, member).await;
            let window = writer.stop(PAUSE_AFTER_FAULT).await;
            control.add(&window.written, &window.control);
            for (watch, lateness) in watches.iter().zip(&mut lateness) {
                lateness.add(&window.written, &watch.arrivals());
            }
            tokio::time::sleep(PAUSE_AFTER_FAULT).await;
        }
        println!("{}: control {control}", fault.describe());
        for (client, lateness) in CLIENTS.iter().zip(&lateness) {
            all_met &= lateness.report(client.name, &control, client.bounds.of(*fault));
        }
    }
    all_met
}
