//! The clock of the measurements, comparable between processes.

use std::time::SystemTime;

/// Returns the current time in microseconds since 1970.
pub fn now() -> u128 {
    let elapsed = SystemTime::UNIX_EPOCH.elapsed();
    elapsed.expect("the clock is after 1970").as_micros()
}
