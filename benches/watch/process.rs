//! What this process uses, as Linux tells it.

use std::fs;

/// Memory, in bytes.
#[derive(Clone, Copy)]
pub struct Memory {
    /// What it has now.
    pub resident: u64,
    /// The most it ever had.
    pub peak: u64,
}

impl Memory {
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let figure = line.and_then(|line| line.split_whitespace().next());
            figure.and_then(|figure| figure.parse().ok()).unwrap_or(0)
        };
        Self {
            resident: kib("VmRSS:") * 1024,
            peak: kib("VmHWM:") * 1024,
        }
    }
}
