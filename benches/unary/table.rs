//! Results of a workload, as a table and as JSON.

use serde_json::{Value, json};

use super::{
    REFERENCE_CLIENT,
    results::{Figure, Measurement, WorkloadResults},
};

/// Prints the results of a workload.
pub fn print(results: &WorkloadResults) {
    println!("\n{} ({} rounds)", results.workload, rounds(results));
    println!(
        "  {:<14} {:>9} {:>9} {:>9} {:>9}    {:>7} {:>7} {:>7}",
        "", "calls/s", "p50 µs", "p99 µs", "CPU µs", "calls/s", "p99", "CPU"
    );
    for client in &results.clients {
        let ratio = |figure: Figure| match results.ratio(&client.client, REFERENCE_CLIENT, figure) {
            Some(ratio) => format!("{ratio:.2}×"),
            None => "-".to_owned(),
        };
        let failed = client.rounds.iter().filter(|run| has_errors(run)).count();
        println!(
            "  {:<14} {:>9.0} {:>9.1} {:>9.1} {:>9.2}    {:>7} {:>7} {:>7}{}",
            client.client,
            client.median(|run| run.calls_per_sec),
            client.median(|run| run.p50),
            client.median(|run| run.p99),
            client.median(|run| run.cpu),
            ratio(|run| run.calls_per_sec),
            ratio(|run| run.p99),
            ratio(|run| run.cpu),
            if failed > 0 { "  errors!" } else { "" },
        );
    }
}

fn rounds(results: &WorkloadResults) -> usize {
    results
        .clients
        .first()
        .map_or(0, |client| client.rounds.len())
}

fn has_errors(measurement: &Measurement) -> bool {
    measurement
        .errors
        .as_object()
        .is_some_and(|errors| !errors.is_empty())
}

/// Returns the results of a workload, with all rounds, as JSON.
pub fn json(results: &WorkloadResults) -> Value {
    let ratio = |client: &str, figure: Figure| results.ratio(client, REFERENCE_CLIENT, figure);
    let clients: Vec<Value> = results
        .clients
        .iter()
        .map(|client| {
            let each = |figure: Figure| -> Vec<f64> { client.rounds.iter().map(figure).collect() };
            json!({
                "client": client.client,
                "calls_per_s": each(|run| run.calls_per_sec),
                "p50_us": each(|run| run.p50),
                "p99_us": each(|run| run.p99),
                "cpu_us": each(|run| run.cpu),
                "errors": client.rounds.iter().map(|run| run.errors.clone()).collect::<Vec<_>>(),
                "ratio_to_etcd_client": {
                    "calls": ratio(&client.client, |run| run.calls_per_sec),
                    "p99": ratio(&client.client, |run| run.p99),
                    "cpu": ratio(&client.client, |run| run.cpu),
                },
            })
        })
        .collect();
    json!({
        "server": results.workload.server,
        "op": results.workload.op,
        "callers": results.workload.callers,
        "threads": results.workload.threads,
        "clients": clients,
    })
}
