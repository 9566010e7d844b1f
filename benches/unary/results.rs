//! Measurements of the clients, and how they compare.

use serde_json::Value;

use super::plan::Workload;

/// Results of one run of one client.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub calls_per_sec: f64,
    /// Latency in microseconds.
    pub p50: f64,
    pub p99: f64,
    /// CPU time per call in microseconds.
    pub cpu: f64,
    pub errors: Value,
}

/// Selects one number of a measurement.
pub type Figure = fn(&Measurement) -> f64;

/// Measurements of one client, one per round.
pub struct ClientResults {
    pub client: String,
    pub rounds: Vec<Measurement>,
}

/// Measurements of all clients for one workload.
pub struct WorkloadResults {
    pub workload: Workload,
    pub clients: Vec<ClientResults>,
}

/// Comparison of two clients. All clients run in every round, so the rounds are compared in pairs, too.
pub struct Comparison {
    /// The comparison of the medians. Targets apply to it.
    pub of_medians: f64,
    /// First and third quartile of the comparisons within each round: the noise of the machine.
    pub quartiles: (f64, f64),
}

impl WorkloadResults {
    pub fn of(&self, client: &str) -> Option<&ClientResults> {
        self.clients.iter().find(|results| results.client == client)
    }

    /// Compares a client with a reference client by `compare(client, reference)`.
    pub fn compare(
        &self,
        client: &str,
        reference: &str,
        figure: Figure,
        compare: fn(f64, f64) -> f64,
    ) -> Option<Comparison> {
        let (client, reference) = (self.of(client)?, self.of(reference)?);
        let pairs = client.rounds.iter().zip(&reference.rounds);
        let mut pairs: Vec<f64> = pairs
            .map(|(client, reference)| compare(figure(client), figure(reference)))
            .collect();
        pairs.sort_by(f64::total_cmp);
        let quarter = pairs.len() / 4;
        Some(Comparison {
            of_medians: compare(client.median(figure), reference.median(figure)),
            quartiles: (*pairs.get(quarter)?, *pairs.iter().rev().nth(quarter)?),
        })
    }

    /// Returns the ratio of a client's median to that of the reference client.
    pub fn ratio(&self, client: &str, reference: &str, figure: Figure) -> Option<f64> {
        let comparison = self.compare(client, reference, figure, |a, b| a / b)?;
        Some(comparison.of_medians)
    }
}

impl ClientResults {
    pub fn median(&self, figure: Figure) -> f64 {
        let mut numbers: Vec<f64> = self.rounds.iter().map(figure).collect();
        numbers.sort_by(f64::total_cmp);
        match numbers.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => numbers[count / 2],
            count => f64::midpoint(numbers[count / 2 - 1], numbers[count / 2]),
        }
    }
}
