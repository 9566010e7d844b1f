//! A table for people, JSON for programs.

use serde_json::{Value, json};

use super::{Figures, Measured};

/// One row of the grid, as soon as it is known.
pub fn print(row: &Measured) {
    println!("\n{} ({} rounds)", row.cell, rounds(row));
    println!(
        "  {:<12} {:>9} {:>9} {:>9} {:>9}    {:>7} {:>7} {:>7}",
        "", "calls/s", "p50 µs", "p99 µs", "CPU µs", "calls/s", "p99", "CPU"
    );
    for series in &row.series {
        let ratio = |figure: fn(&Figures) -> f64| match row.ratio(&series.client, figure) {
            Some(ratio) => format!("{ratio:.2}×"),
            None => "-".to_owned(),
        };
        let failed = series.rounds.iter().filter(|one| has_errors(one)).count();
        println!(
            "  {:<12} {:>9.0} {:>9.1} {:>9.1} {:>9.2}    {:>7} {:>7} {:>7}{}",
            series.client,
            series.median(|one| one.calls),
            series.median(|one| one.p50),
            series.median(|one| one.p99),
            series.median(|one| one.cpu),
            ratio(|one| one.calls),
            ratio(|one| one.p99),
            ratio(|one| one.cpu),
            if failed > 0 { "  errors!" } else { "" },
        );
    }
}

fn rounds(row: &Measured) -> usize {
    row.series.first().map_or(0, |series| series.rounds.len())
}

fn has_errors(figures: &Figures) -> bool {
    figures
        .errors
        .as_object()
        .is_some_and(|errors| !errors.is_empty())
}

/// The same row with every round in it.
pub fn json(row: &Measured) -> Value {
    let clients: Vec<Value> = row
        .series
        .iter()
        .map(|series| {
            let each = |figure: fn(&Figures) -> f64| -> Vec<f64> {
                series.rounds.iter().map(figure).collect()
            };
            json!({
                "client": series.client,
                "calls_per_s": each(|one| one.calls),
                "p50_us": each(|one| one.p50),
                "p99_us": each(|one| one.p99),
                "cpu_us": each(|one| one.cpu),
                "errors": series.rounds.iter().map(|one| one.errors.clone()).collect::<Vec<_>>(),
                "against_etcd_client": {
                    "calls": row.ratio(&series.client, |one| one.calls),
                    "p99": row.ratio(&series.client, |one| one.p99),
                    "cpu": row.ratio(&series.client, |one| one.cpu),
                },
            })
        })
        .collect();
    json!({
        "server": row.cell.server,
        "op": row.cell.op,
        "callers": row.cell.callers,
        "threads": row.cell.threads,
        "clients": clients,
    })
}
