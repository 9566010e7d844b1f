//! Throughput of one watch, from a server that sends as fast as possible, compared with etcd-client in the same run.

use std::process::Stdio;

use testbed::{FastServer, WatchPlan};

use crate::load_program::{LoadProgram, verdict};

const EVENTS: u64 = 2_000_000;
const ROUNDS: usize = 3;
/// Target: ratio of the event rate to that of etcd-client.
const TARGET_RATIO: f64 = 1.5;

/// Returns whether the target was met.
pub fn run() -> bool {
    let program = LoadProgram::build();
    let mut all_met = true;
    // On one thread, the client runs on the arbiter of its consumer; else on its own thread.
    for (ours, runtime) in [("ours-in-place", "one"), ("ours", "two")] {
        for batch in [1, 10, 100] {
            let events = if batch == 1 { EVENTS / 4 } else { EVENTS };
            let server = FastServer::start_with(WatchPlan {
                events,
                batch,
                value_size: 64,
            });
            // The clients alternate, so that other load on the machine affects both; the best round of each counts.
            let mut best = [(ours, 0.0, 0.0), ("etcd-client", 0.0, 0.0)];
            for _ in 0..ROUNDS {
                for (client, rate, cpu) in &mut best {
                    let (new_rate, new_cpu) =
                        measure(&program, client, runtime, &server.endpoint(), events);
                    if new_rate > *rate {
                        (*rate, *cpu) = (new_rate, new_cpu);
                    }
                }
            }
            let [(_, ours, our_cpu), (_, theirs, their_cpu)] = best;
            let ratio = ours / theirs;
            println!(
                "{runtime} thread(s), batches of {batch}: {ours:.0} events/s, {our_cpu:.2} µs of CPU per event; \
                 etcd-client {theirs:.0}, {their_cpu:.2} µs; ratio {ratio:.2} (target ≥ {TARGET_RATIO}): {}",
                verdict(ratio >= TARGET_RATIO)
            );
            all_met &= ratio >= TARGET_RATIO;
        }
    }
    all_met
}

fn measure(
    program: &LoadProgram,
    client: &str,
    runtime: &str,
    endpoint: &str,
    events: u64,
) -> (f64, f64) {
    let events = events.to_string();
    let arguments = [
        ("client", client),
        ("runtime", runtime),
        ("events", &events),
        ("endpoints", endpoint),
    ];
    let run = program
        .command("watch", &arguments)
        .stderr(Stdio::inherit())
        .output()
        .expect("run the load program");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(
        run.status.success(),
        "{client} failed: {}: {text}",
        run.status
    );
    let figure = |name: &str| -> f64 {
        let after = text.split(&format!("\"{name}\":")).nth(1);
        let figure = after.and_then(|after| after.split([',', '}']).next());
        let figure = figure.and_then(|figure| figure.parse().ok());
        figure.unwrap_or_else(|| panic!("no {name} in the output of {client}: {text}"))
    };
    (figure("events_per_s"), figure("cpu_us"))
}
