//! Targets: ratios to etcd-client in the same run, with deadlines and balancing enabled.

use serde_json::{Value, json};

use super::{Measurement, Workload, WorkloadResults, load_program::verdict};

/// Bound of a ratio to etcd-client, for one workload.
struct Target {
    callers: usize,
    threads: &'static str,
    name: &'static str,
    figure: fn(&Measurement) -> f64,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

const TARGETS: [Target; 10] = [
    target(64, "one", "CPU/call", |run| run.cpu, Bound::AtMost(0.70)),
    target(
        64,
        "one",
        "calls/s",
        |run| run.calls_per_sec,
        Bound::AtLeast(1.3),
    ),
    target(64, "one", "p99", |run| run.p99, Bound::AtMost(1.0)),
    target(64, "two", "CPU/call", |run| run.cpu, Bound::AtMost(0.80)),
    target(
        64,
        "two",
        "calls/s",
        |run| run.calls_per_sec,
        Bound::AtLeast(1.3),
    ),
    target(64, "two", "p99", |run| run.p99, Bound::AtMost(1.0)),
    target(1, "one", "CPU/call", |run| run.cpu, Bound::AtMost(1.0)),
    target(
        1,
        "one",
        "calls/s",
        |run| run.calls_per_sec,
        Bound::AtLeast(1.0),
    ),
    target(1, "one", "p50", |run| run.p50, Bound::AtMost(1.0)),
    target(1, "one", "p99", |run| run.p99, Bound::AtMost(1.0)),
];

const fn target(
    callers: usize,
    threads: &'static str,
    name: &'static str,
    figure: fn(&Measurement) -> f64,
    bound: Bound,
) -> Target {
    Target {
        callers,
        threads,
        name,
        figure,
        bound,
    }
}

impl Target {
    fn applies_to(&self, workload: &Workload) -> bool {
        workload.server == "constant"
            && workload.callers == self.callers
            && workload.threads == self.threads
    }

    fn is_met(&self, ratio: f64) -> bool {
        match self.bound {
            Bound::AtMost(bound) => ratio <= bound,
            Bound::AtLeast(bound) => ratio >= bound,
        }
    }

    fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtMost(bound) => format!("≤ {bound:.2}"),
            Bound::AtLeast(bound) => format!("≥ {bound:.2}"),
        }
    }
}

/// Returns whether a workload has targets.
pub fn apply_to(workload: &Workload) -> bool {
    TARGETS.iter().any(|target| target.applies_to(workload))
}

/// Prints the result of each target. Returns the results as JSON, and whether all targets were met.
pub fn check(measured: &[WorkloadResults]) -> (Vec<Value>, bool) {
    println!("\nratios to etcd-client (medians)");
    let mut results = Vec::new();
    let mut all_met = true;
    for target in &TARGETS {
        for row in measured
            .iter()
            .filter(|row| target.applies_to(&row.workload))
        {
            let Some(ratio) = row.ratio("ours", target.figure) else {
                continue;
            };
            let met = target.is_met(ratio);
            all_met &= met;
            println!(
                "  {:<6}  {:<10} {:>5.2}× (target {})  {}",
                verdict(met),
                target.name,
                ratio,
                target.bound_text(),
                row.workload,
            );
            results.push(json!({
                "workload": row.workload.to_string(),
                "figure": target.name,
                "ratio": ratio,
                "target": target.bound_text(),
                "met": met,
            }));
        }
    }
    (results, all_met)
}
