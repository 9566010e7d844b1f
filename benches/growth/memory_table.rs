//! Resident memory per watch, lease, client, connection and call.

use serde_json::{Value, json};
use testbed::{FastServer, Reply, ScriptedServer, WatchPlan};

use crate::{client_process::Load, load_program::verdict};

/// Number of watches, leases and calls. The fixed memory of a client is small compared with theirs.
const MANY: usize = 10_000;
const CLIENTS: usize = 20;
const ENDPOINTS: usize = 100;

/// Measures and prints the table. Returns whether the targets are met, and the rows as JSON.
pub fn measure() -> (bool, Vec<Value>) {
    let plan = WatchPlan {
        events: 1,
        ..WatchPlan::default()
    };
    let server = FastServer::start_on_ports(plan, ENDPOINTS);
    let one = &server.endpoints()[..1];
    let bytes = |load: Load, count, endpoints| load.measure(count, endpoints).get("bytes");
    let client = bytes(Load::Clients, CLIENTS, one);
    let connected = bytes(Load::Clients, CLIENTS / 4, server.endpoints());
    let mut table = Table::default();
    table.add("watch", bytes(Load::Watches, MANY, one), None);
    table.add(
        "watch and its task, 500 opened at a time",
        bytes(Load::WatchTasks, MANY, one),
        Some(4096.0),
    );
    table.add(
        "watch and its task, all opened at once",
        bytes(Load::WatchTasksAtOnce, MANY, one),
        Some(4096.0),
    );
    table.add(
        "watch delivered to an actor",
        bytes(Load::WatchDeliveries, MANY, one),
        None,
    );
    table.add("lease", bytes(Load::Leases, MANY, one), Some(2048.0));
    table.add("idle client with one connection", client, None);
    table.add(
        "further connection",
        (connected - client) / (ENDPOINTS - 1) as f64,
        None,
    );
    table.add("call in flight, with its task", call_in_flight(), None);
    (table.all_met, table.rows)
}

fn call_in_flight() -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("start the runtime");
    let server = runtime.block_on(ScriptedServer::start());
    server.on("/etcdserverpb.KV/Range", |_| Reply::hang());
    let figures = Load::CallsInFlight.measure(MANY, &[server.endpoint()]);
    figures.get("bytes")
}

struct Table {
    rows: Vec<Value>,
    all_met: bool,
}

impl Default for Table {
    fn default() -> Self {
        println!("resident memory in bytes per");
        Self {
            rows: Vec::new(),
            all_met: true,
        }
    }
}

impl Table {
    fn add(&mut self, name: &str, bytes: f64, target: Option<f64>) {
        let met = target.is_none_or(|target| bytes <= target);
        let checked = target.map_or(String::new(), |target| {
            format!(" (target ≤ {target:.0}): {}", verdict(met))
        });
        println!("  {name:<42}{bytes:>9.0}{checked}");
        self.all_met &= met;
        self.rows.push(json!({
            "name": name,
            "bytes": bytes,
            "target": target,
            "met": met,
        }));
    }
}
