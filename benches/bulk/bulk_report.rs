//! Results as tables and as JSON, and the targets.

use serde_json::{Value, json};

use super::load_program::verdict;

/// Results of one run of one client.
pub struct Run {
    pub keys_per_sec: f64,
    /// CPU time per key in microseconds.
    pub cpu_us_per_key: f64,
    /// Growth of the resident memory up to its peak, in bytes.
    pub rss_growth: f64,
}

/// Runs of one client, one per round.
pub struct ClientRuns {
    pub client: &'static str,
    pub runs: Vec<Run>,
}

/// Results of all clients for one task. The first client is actix-etcd.
pub struct TaskResults {
    pub task: &'static str,
    pub clients: Vec<ClientRuns>,
}

/// Least ratio of keys per second to the best other client; for the export, to one single range.
const TARGETS: [(&str, f64); 3] = [("import", 5.0), ("get_many", 8.0), ("export", 0.8)];

impl ClientRuns {
    fn median(&self, figure: impl Fn(&Run) -> f64) -> f64 {
        let mut numbers: Vec<f64> = self.runs.iter().map(figure).collect();
        numbers.sort_by(f64::total_cmp);
        match numbers.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => numbers[count / 2],
            count => f64::midpoint(numbers[count / 2 - 1], numbers[count / 2]),
        }
    }

    fn rate(&self) -> f64 {
        self.median(|run| run.keys_per_sec)
    }
}

impl TaskResults {
    /// Returns the ratio of a client's rate to that of the best client other than actix-etcd.
    fn ratio(&self, client: &ClientRuns) -> f64 {
        let others = self.clients.iter().skip(1).map(ClientRuns::rate);
        client.rate() / others.fold(0.0, f64::max)
    }
}

pub fn print(results: &TaskResults) {
    println!("\n{}", results.task);
    println!(
        "  {:<26} {:>10} {:>11} {:>15} {:>9}",
        "", "keys/s", "CPU µs/key", "RSS growth MiB", "ratio"
    );
    for client in &results.clients {
        println!(
            "  {:<26} {:>10.0} {:>11.2} {:>15.1} {:>8.2}×",
            client.client,
            client.rate(),
            client.median(|run| run.cpu_us_per_key),
            client.median(|run| run.rss_growth) / f64::from(1 << 20),
            results.ratio(client),
        );
    }
}

/// Returns one JSON object per client.
pub fn rows(results: &TaskResults) -> Vec<Value> {
    let row = |client: &ClientRuns| {
        json!({
            "task": results.task,
            "client": client.client,
            "keys_per_s": client.rate(),
            "cpu_us_per_key": client.median(|run| run.cpu_us_per_key),
            "rss_growth_bytes": client.median(|run| run.rss_growth),
            "ratio_to_best_peer": results.ratio(client),
        })
    };
    results.clients.iter().map(row).collect()
}

/// Prints the result of each target. Returns the results as JSON, and whether all targets were met.
pub fn check(measured: &[TaskResults]) -> (Vec<Value>, bool) {
    println!("\nratios to the best other client, or to one single range (medians)");
    let (mut results, mut all_met) = (Vec::new(), true);
    for (task, least) in TARGETS {
        let Some(measured) = measured.iter().find(|results| results.task == task) else {
            continue;
        };
        let Some(ours) = measured.clients.first() else {
            continue;
        };
        let ratio = measured.ratio(ours);
        let met = ratio >= least;
        all_met &= met;
        println!(
            "  {:<6}  {task:<10} {ratio:>6.2}× (target ≥ {least:.1})",
            verdict(met)
        );
        results.push(json!({"task": task, "ratio": ratio, "target": least, "met": met}));
    }
    (results, all_met)
}
