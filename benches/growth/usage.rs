//! Memory and CPU time of this process.

use std::{fs, time::Duration};

use serde_json::{Map, Value, json};

use crate::memory::Memory;

/// Memory and CPU time of this process at one moment.
#[derive(Clone, Copy)]
pub struct Usage {
    resident: u64,
    cpu: Duration,
}

impl Usage {
    pub fn now() -> Self {
        Self {
            resident: Memory::now().resident,
            cpu: cpu_time(),
        }
    }

    /// Returns the growth of the resident memory since `earlier`, in bytes per unit.
    pub fn bytes_since(&self, earlier: &Self, units: f64) -> f64 {
        self.resident.saturating_sub(earlier.resident) as f64 / units
    }

    /// Returns the CPU time since `earlier`, in microseconds per unit.
    pub fn micros_since(&self, earlier: &Self, units: f64) -> f64 {
        self.cpu.saturating_sub(earlier.cpu).as_secs_f64() * 1e6 / units
    }
}

/// Returns the CPU time of the threads of this process so far. The loads end no thread while they are measured.
fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs of Linux");
    let nanos = tasks.flatten().map(|task| {
        let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let first = stat.split_whitespace().next();
        first.and_then(|text| text.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns the CPU time that this process uses while it does nothing, as part of one core.
pub async fn idle_cores(duration: Duration) -> f64 {
    let before = Usage::now();
    tokio::time::sleep(duration).await;
    Usage::now().micros_since(&before, duration.as_secs_f64() * 1e6)
}

/// Returns figures by name as JSON.
pub fn figures(named: &[(&str, f64)]) -> Value {
    let named = named.iter();
    let figures: Map<_, _> = named
        .map(|(name, figure)| ((*name).to_owned(), json!(figure)))
        .collect();
    Value::Object(figures)
}
