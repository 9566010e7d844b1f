//! Targets: comparisons of medians within one run, on the constant server, with deadlines and balancing enabled.

use serde_json::{Value, json};

use super::{
    REFERENCE_CLIENT,
    load_program::verdict,
    plan::Workload,
    results::{Figure, Measurement, WorkloadResults},
};

const GET: &[&str] = &["get"];
const GET_AND_PUT: &[&str] = &["get", "put"];

/// Bound of a comparison of two clients, for one workload.
struct Target {
    client: &'static str,
    reference: &'static str,
    ops: &'static [&'static str],
    threads: &'static str,
    callers: usize,
    name: &'static str,
    figure: Figure,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    /// Ratio to the reference.
    AtMost(f64),
    /// Ratio to the reference.
    AtLeast(f64),
    /// Difference to the reference, in microseconds.
    DiffersAtMost(f64),
}

use Bound::{AtLeast, AtMost, DiffersAtMost};

/// Targets of the default mode: the client has its own thread.
const DEFAULT_MODE: [(&str, usize, &str, Bound); 12] = [
    ("one", 1, CALLS, AtLeast(1.05)),
    ("one", 2, CALLS, AtLeast(1.05)),
    ("one", 8, CALLS, AtLeast(1.1)),
    ("one", 64, CALLS, AtLeast(1.15)),
    ("two", 1, CALLS, AtLeast(1.05)),
    ("two", 2, CALLS, AtLeast(1.05)),
    ("two", 8, CALLS, AtLeast(1.1)),
    ("two", 64, CALLS, AtLeast(1.3)),
    ("one", 1, CPU, AtMost(0.95)),
    ("one", 64, CPU, AtMost(0.80)),
    ("two", 1, CPU, AtMost(0.95)),
    ("two", 64, CPU, AtMost(0.62)),
];

/// Targets of the client on the arbiter of its callers.
const IN_PLACE: [(usize, &str, Bound); 7] = [
    (64, CPU, AtMost(0.70)),
    (64, CALLS, AtLeast(1.3)),
    (64, P99, AtMost(1.0)),
    (1, CPU, AtMost(1.0)),
    (1, CALLS, AtLeast(1.0)),
    (1, P50, AtMost(1.0)),
    (1, P99, AtMost(1.0)),
];

const CALLS: &str = "calls/s";
const CPU: &str = "CPU/call";
const P50: &str = "p50";
const P99: &str = "p99";

fn figure(name: &str) -> Figure {
    match name {
        CALLS => |run: &Measurement| run.calls_per_sec,
        CPU => |run: &Measurement| run.cpu,
        P50 => |run: &Measurement| run.p50,
        _ => |run: &Measurement| run.p99,
    }
}

fn targets() -> Vec<Target> {
    let default_mode = DEFAULT_MODE.map(|(threads, callers, name, bound)| Target {
        client: "ours",
        reference: REFERENCE_CLIENT,
        ops: GET,
        threads,
        callers,
        name,
        figure: figure(name),
        bound,
    });
    let in_place = IN_PLACE.map(|(callers, name, bound)| Target {
        client: "ours-in-place",
        reference: REFERENCE_CLIENT,
        ops: GET_AND_PUT,
        threads: "one",
        callers,
        name,
        figure: figure(name),
        bound,
    });
    let through_actor = Target {
        client: "ours-actor",
        reference: "ours",
        ops: GET,
        threads: "one",
        callers: 64,
        name: CPU,
        figure: figure(CPU),
        bound: DiffersAtMost(1.5),
    };
    let go = Target {
        client: "ours",
        reference: "go",
        ops: GET,
        threads: "two",
        callers: 64,
        name: CPU,
        figure: figure(CPU),
        bound: AtMost(0.50),
    };
    let all = default_mode.into_iter().chain(in_place);
    all.chain([through_actor, go]).collect()
}

impl Target {
    fn applies_to(&self, workload: &Workload) -> bool {
        workload.server == "constant"
            && self.ops.contains(&workload.op.as_str())
            && workload.callers == self.callers
            && workload.threads == self.threads
    }

    fn compare(&self) -> fn(f64, f64) -> f64 {
        match self.bound {
            AtMost(_) | AtLeast(_) => |client, reference| client / reference,
            DiffersAtMost(_) => |client, reference| client - reference,
        }
    }

    fn is_met(&self, compared: f64) -> bool {
        match self.bound {
            AtMost(bound) | DiffersAtMost(bound) => compared <= bound,
            AtLeast(bound) => compared >= bound,
        }
    }

    fn bound_text(&self) -> String {
        match self.bound {
            AtMost(bound) => format!("≤ {bound:.2} ×"),
            AtLeast(bound) => format!("≥ {bound:.2} ×"),
            DiffersAtMost(bound) => format!("≤ {bound:+.2} µs"),
        }
    }

    fn compared_text(&self, compared: f64) -> String {
        match self.bound {
            AtMost(_) | AtLeast(_) => format!("{compared:.2} ×"),
            DiffersAtMost(_) => format!("{compared:+.2} µs"),
        }
    }
}

/// Returns whether a workload has targets.
pub fn apply_to(workload: &Workload) -> bool {
    targets().iter().any(|target| target.applies_to(workload))
}

/// Prints the result of each target. Returns the results as JSON, and whether all targets were met.
pub fn check(measured: &[WorkloadResults]) -> (Vec<Value>, bool) {
    println!("\ncomparisons of medians; in brackets the middle half of the rounds");
    let mut results = Vec::new();
    let mut all_met = true;
    for target in &targets() {
        for row in measured
            .iter()
            .filter(|row| target.applies_to(&row.workload))
        {
            let (client, reference) = (target.client, target.reference);
            let compared = row.compare(client, reference, target.figure, target.compare());
            let Some(compared) = compared else {
                continue;
            };
            let met = target.is_met(compared.of_medians);
            all_met &= met;
            let text = |number: f64| target.compared_text(number);
            println!(
                "  {:<6}  {:<8} {:>8} [{} … {}] (target {}), {client} to {reference}: {}",
                verdict(met),
                target.name,
                text(compared.of_medians),
                text(compared.quartiles.0),
                text(compared.quartiles.1),
                target.bound_text(),
                row.workload,
            );
            let is_difference = matches!(target.bound, DiffersAtMost(_));
            results.push(json!({
                "workload": row.workload.to_string(),
                "client": client,
                "reference": reference,
                "figure": target.name,
                "ratio": (!is_difference).then_some(compared.of_medians),
                "difference_us": is_difference.then_some(compared.of_medians),
                "quartiles": [compared.quartiles.0, compared.quartiles.1],
                "target": target.bound_text(),
                "met": met,
            }));
        }
    }
    (results, all_met)
}
