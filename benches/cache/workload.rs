//! What a run does.

use std::env;

/// The keys and changes of a run, the same in both processes.
#[derive(Clone, Copy)]
pub struct Workload {
    pub keys: u64,
    pub value: usize,
    pub events: u64,
}

impl Workload {
    pub fn from_env() -> Self {
        let number = |variable: &str, default: u64| {
            env::var(variable).map_or(default, |text| {
                let number = text.parse();
                number.unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
            })
        };
        Self {
            keys: number("CACHE_KEYS", 1_000_000),
            value: usize::try_from(number("CACHE_VALUE", 100)).expect("a size"),
            events: number("CACHE_EVENTS", 2_000_000),
        }
    }

    /// Prefix of all keys.
    pub const PREFIX: &str = "bench/";

    /// Returns the name of a key.
    pub fn key(number: u64) -> String {
        format!("{}{number:08}", Self::PREFIX)
    }

    /// Returns the value of a key after the change with this number; the first value has the number 0.
    pub fn value(&self, change: u64) -> String {
        format!("{change:0width$}", width = self.value)
    }

    /// Returns the number of the key that a change writes.
    pub fn changed_key(&self, change: u64) -> u64 {
        // Mixes the bits, so that consecutive changes are far from each other.
        let mixed = change.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) % self.keys
    }

    /// Revision of the keys before the changes.
    pub fn first_revision(&self) -> i64 {
        i64::try_from(self.keys).expect("a revision") + 1
    }
}
