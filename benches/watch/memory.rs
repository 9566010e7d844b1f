//! Memory of this process, read from procfs.

use std::fs;

/// Memory of this process in bytes.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Resident memory.
    pub resident: u64,
    /// Peak of the resident memory.
    pub peak: u64,
}

impl Memory {
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.split_whitespace().next());
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Self {
            resident: kib("VmRSS:") * 1024,
            peak: kib("VmHWM:") * 1024,
        }
    }
}
