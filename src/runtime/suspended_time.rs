//! How long the machine was suspended.
//!
//! `std` and tokio count time on `CLOCK_MONOTONIC`, which stops while the machine is suspended. etcd's servers run on. On
//! Linux and Android, `CLOCK_BOOTTIME` counts that time too: the difference between both clocks grows by the length of
//! each suspension. Other systems offer no such clock, and the suspended time is always zero there.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Maximum number of attempts to read both clocks at the same time.
const MAX_READS: usize = 3;
/// Longest time between the two reads of an attempt.
const MAX_READ_TIME: Duration = Duration::from_micros(100);

/// One look at both clocks. The boot clock is read between the two reads of the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    monotonic_before: Duration,
    boot: Duration,
    monotonic_after: Duration,
}

impl ClockReading {
    /// Returns the difference between the clocks, or less if this thread was interrupted between the reads.
    fn difference(self) -> Duration {
        self.boot.saturating_sub(self.monotonic_after)
    }

    fn is_exact(self) -> bool {
        self.monotonic_after.saturating_sub(self.monotonic_before) <= MAX_READ_TIME
    }
}

/// Returns how much the difference between the clocks has grown since the `first` one: the length of all suspensions
/// since then. The result is never larger than the truth. Interrupted readings are repeated, because they are too small.
fn suspended_since(first: Duration, readings: impl Iterator<Item = ClockReading>) -> Duration {
    let mut longest = Duration::ZERO;
    for reading in readings.take(MAX_READS) {
        longest = longest.max(reading.difference().saturating_sub(first));
        if reading.is_exact() {
            break;
        }
    }
    longest
}

/// Returns how long the machine was suspended since the first call in this process. Never decreases.
pub(crate) fn suspended_time() -> Duration {
    static FIRST: OnceLock<Duration> = OnceLock::new();
    static LONGEST_NANOS: AtomicU64 = AtomicU64::new(0);
    let mut readings = std::iter::from_fn(read_clocks);
    let first = FIRST.get_or_init(|| {
        let differences = readings.by_ref().take(MAX_READS);
        let differences = differences.map(ClockReading::difference);
        differences.max().unwrap_or_default()
    });
    let suspended = suspended_since(*first, readings).as_nanos();
    let suspended = u64::try_from(suspended).unwrap_or(u64::MAX);
    let before = LONGEST_NANOS.fetch_max(suspended, Ordering::Relaxed);
    Duration::from_nanos(before.max(suspended))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_clocks() -> Option<ClockReading> {
    use rustix::time::{ClockId, clock_gettime};

    // No clock is before its own start.
    let read = |clock| Duration::try_from(clock_gettime(clock)).ok();
    Some(ClockReading {
        monotonic_before: read(ClockId::Monotonic)?,
        boot: read(ClockId::Boottime)?,
        monotonic_after: read(ClockId::Monotonic)?,
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read_clocks() -> Option<ClockReading> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A reading at `monotonic` after `suspended` ms of suspension, interrupted before and after the boot clock is read.
    fn reading(monotonic: u64, suspended: u64, interruptions: [u64; 2]) -> ClockReading {
        let [before, after] = interruptions;
        ClockReading {
            monotonic_before: ms(monotonic),
            boot: ms(monotonic + before + suspended),
            monotonic_after: ms(monotonic + before + after),
        }
    }

    #[test]
    fn suspension_is_the_growth_of_the_difference() {
        let first = reading(1_000, 500, [0, 0]).difference();
        let since = |later| suspended_since(first, [later].into_iter());
        assert_eq!(since(reading(9_000, 500, [0, 0])), Duration::ZERO);
        assert_eq!(since(reading(9_000, 4_500, [0, 0])), ms(4_000));
    }

    #[test]
    fn interrupted_reading_is_repeated_and_never_too_large() {
        let first = reading(0, 0, [0, 0]).difference();
        let interrupted = reading(100, 300, [50, 20]);
        let exact = reading(200, 300, [0, 0]);
        let readings = [interrupted, exact].into_iter();
        assert_eq!(suspended_since(first, readings), ms(300));
        let readings = [interrupted, interrupted, interrupted, exact].into_iter();
        assert_eq!(suspended_since(first, readings), ms(280));
        assert_eq!(suspended_since(first, std::iter::empty()), Duration::ZERO);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn running_machine_is_not_suspended() {
        let before = suspended_time();
        let reading = read_clocks().unwrap();
        assert!(reading.monotonic_before > Duration::ZERO);
        assert!(reading.boot >= reading.monotonic_before);
        assert!(suspended_time() < before + ms(1_000));
    }
}
