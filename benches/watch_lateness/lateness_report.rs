//! The lateness of the events of one client during one fault.

use std::fmt;

use crate::{lateness_fault::LatenessFault, load_program::verdict, steady_writer::Times};

/// Bounds of the excess over the control in milliseconds, if there are any.
pub struct Bounds {
    /// Bound for every fault.
    pub all: Option<u128>,
    /// Bound for faults that only a probe shows.
    pub silent: Option<u128>,
}

impl Bounds {
    pub fn of(&self, fault: LatenessFault) -> Option<u128> {
        if fault.is_silent() {
            self.silent
        } else {
            self.all
        }
    }
}

/// Largest lateness of the three members, in microseconds.
#[derive(Default)]
pub struct Lateness {
    max: u128,
    p99: u128,
    events: usize,
    missing: usize,
}

impl Lateness {
    /// Adds the events of one window. An event that has not arrived counts as missing.
    pub fn add(&mut self, written: &Times, arrived: &Times) {
        let mut lateness: Vec<u128> = written
            .iter()
            .filter_map(|(revision, at)| Some(arrived.get(revision)?.saturating_sub(*at)))
            .collect();
        lateness.sort_unstable();
        self.events += lateness.len();
        self.missing += written.len() - lateness.len();
        self.max = self.max.max(lateness.last().copied().unwrap_or(0));
        let p99 = lateness.get(lateness.len() * 99 / 100);
        self.p99 = self.p99.max(p99.copied().unwrap_or(0));
    }

    /// Prints the lateness. Returns whether every event arrived and the bound was met.
    pub fn report(&self, name: &str, control: &Self, bound: Option<u128>) -> bool {
        let Some(bound) = bound else {
            println!("  {name:<14} {self}");
            return true;
        };
        let met = self.missing == 0 && self.max.saturating_sub(control.max) <= bound * 1000;
        println!("  {name:<14} {self} (bound {bound}: {})", verdict(met));
        met
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (max, p99) = (self.max / 1000, self.p99 / 1000);
        write!(f, "max {max:>5}, p99 {p99:>5}, {} events", self.events)?;
        if self.missing > 0 {
            write!(f, ", {} MISSING", self.missing)?;
        }
        Ok(())
    }
}
