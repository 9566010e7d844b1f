//! What is promised, against etcd-client in the same run, with deadlines and balancing on.

use serde_json::{Value, json};

use super::{Cell, Figures, Measured, program::verdict};

/// A figure, how it must stand to etcd-client's, and where.
struct Promise {
    callers: usize,
    threads: &'static str,
    name: &'static str,
    figure: fn(&Figures) -> f64,
    limit: Limit,
}

enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

const PROMISES: [Promise; 10] = [
    promise(64, "one", "CPU a call", |one| one.cpu, Limit::AtMost(0.70)),
    promise(64, "one", "calls/s", |one| one.calls, Limit::AtLeast(1.3)),
    promise(64, "one", "p99", |one| one.p99, Limit::AtMost(1.0)),
    promise(64, "two", "CPU a call", |one| one.cpu, Limit::AtMost(0.80)),
    promise(64, "two", "calls/s", |one| one.calls, Limit::AtLeast(1.3)),
    promise(64, "two", "p99", |one| one.p99, Limit::AtMost(1.0)),
    promise(1, "one", "CPU a call", |one| one.cpu, Limit::AtMost(1.0)),
    promise(1, "one", "calls/s", |one| one.calls, Limit::AtLeast(1.0)),
    promise(1, "one", "p50", |one| one.p50, Limit::AtMost(1.0)),
    promise(1, "one", "p99", |one| one.p99, Limit::AtMost(1.0)),
];

const fn promise(
    callers: usize,
    threads: &'static str,
    name: &'static str,
    figure: fn(&Figures) -> f64,
    limit: Limit,
) -> Promise {
    Promise {
        callers,
        threads,
        name,
        figure,
        limit,
    }
}

impl Promise {
    fn is_about(&self, cell: &Cell) -> bool {
        cell.server == "scripted" && cell.callers == self.callers && cell.threads == self.threads
    }

    fn holds(&self, ratio: f64) -> bool {
        match self.limit {
            Limit::AtMost(limit) => ratio <= limit,
            Limit::AtLeast(limit) => ratio >= limit,
        }
    }

    fn wanted(&self) -> String {
        match self.limit {
            Limit::AtMost(limit) => format!("≤ {limit:.2}"),
            Limit::AtLeast(limit) => format!("≥ {limit:.2}"),
        }
    }
}

/// Whether anything is promised of this row.
pub fn concern(cell: &Cell) -> bool {
    PROMISES.iter().any(|promise| promise.is_about(cell))
}

/// Prints which promises hold, and gives the same as JSON and whether all do.
pub fn check(measured: &[Measured]) -> (Vec<Value>, bool) {
    println!("\nagainst etcd-client, ratios of the medians");
    let mut told = Vec::new();
    let mut all_hold = true;
    for promise in &PROMISES {
        for row in measured.iter().filter(|row| promise.is_about(&row.cell)) {
            let Some(ratio) = row.ratio("ours", promise.figure) else {
                continue;
            };
            let holds = promise.holds(ratio);
            all_hold &= holds;
            println!(
                "  {:<6}  {:<10} {:>5.2}× (must be {})  {}",
                verdict(holds),
                promise.name,
                ratio,
                promise.wanted(),
                row.cell,
            );
            told.push(json!({
                "where": row.cell.to_string(),
                "figure": promise.name,
                "ratio": ratio,
                "must": promise.wanted(),
                "holds": holds,
            }));
        }
    }
    (told, all_hold)
}
