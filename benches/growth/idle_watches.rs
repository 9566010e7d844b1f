//! CPU time of idle watches: delivered to an actor, and held as streams.
//!
//! actix sends no notification when an actor stops, so the client checks whether the actors of idle deliveries still
//! run. The check must not be measurable.

use serde_json::{Value, json};

use crate::{client_process::Load, load_program::verdict};

/// Bound of what deliveries may use more than the same number of streams, as part of one core.
const MAX_EXCESS: f64 = 0.005;

/// Measures and prints the rows. Returns whether the target is met, and the rows as JSON.
pub fn measure(endpoint: &[String]) -> (bool, Vec<Value>) {
    println!("\nCPU of idle watches, in percent of one core");
    let (mut all_met, mut rows) = (true, Vec::new());
    for watches in [10_000, 100_000] {
        let cores = |load: Load| load.measure(watches, endpoint).get("idle_cores");
        let (streams, deliveries) = (cores(Load::Watches), cores(Load::WatchDeliveries));
        let met = deliveries <= streams + MAX_EXCESS;
        all_met &= met;
        println!(
            "  {watches:>7} delivered to an actor {:.2}, held as streams {:.2} (target: at most {:.1} more): {}",
            deliveries * 100.0,
            streams * 100.0,
            MAX_EXCESS * 100.0,
            verdict(met)
        );
        rows.push(json!({
            "watches": watches,
            "streams_percent": streams * 100.0,
            "deliveries_percent": deliveries * 100.0,
            "met": met,
        }));
    }
    (all_met, rows)
}
