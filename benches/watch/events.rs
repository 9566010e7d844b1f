//! RevisionEvents through one watch, from a server that sends as fast as it can, beside etcd-client in the same run.

use std::process::Stdio;

use testbed::{FastServer, WatchPlan};

use crate::program::{Program, verdict};

const EVENTS: u64 = 2_000_000;
const ROUNDS: usize = 3;
/// How many times as many as etcd-client.
const MUST: f64 = 1.5;

/// Says whether it holds what is promised.
pub fn run() -> bool {
    let program = Program::build();
    let mut holds = true;
    for runtime in ["one", "two"] {
        for batch in [1, 10, 100] {
            let events = if batch == 1 { EVENTS / 4 } else { EVENTS };
            let server = FastServer::start_with(WatchPlan {
                events,
                batch,
                value: 64,
            });
            // In turn, so that what else the machine does hits both; the best of each counts.
            let mut best = [("ours", 0.0, 0.0), ("etcd-client", 0.0, 0.0)];
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
                "{runtime} thread(s), batches of {batch}: {ours:.0} events a second, {our_cpu:.2} µs of CPU each; \
                 etcd-client {theirs:.0}, {their_cpu:.2} µs; {ratio:.2} times as many (must {MUST}): {}",
                verdict(ratio >= MUST)
            );
            holds &= ratio >= MUST;
        }
    }
    holds
}

fn measure(
    program: &Program,
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
        .expect("it was built");
    // A run that failed is no slow one.
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{client}: {}: {text}", run.status);
    let figure = |name: &str| -> f64 {
        let after = text.split(&format!("\"{name}\":")).nth(1);
        let figure = after.and_then(|after| after.split([',', '}']).next());
        let figure = figure.and_then(|figure| figure.parse().ok());
        figure.unwrap_or_else(|| panic!("{client} tells no {name}: {text}"))
    };
    (figure("events_per_s"), figure("cpu_us"))
}
