//! Scheduling delay of this machine, which time limits in tests have to allow for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const SLEEP: Duration = Duration::from_millis(10);

/// Measures, on its own thread, how much longer than requested a short sleep takes. Stops when dropped.
pub struct MachineDelay {
    worst_ms: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl MachineDelay {
    pub fn measure() -> Self {
        let delay = Self {
            worst_ms: Arc::default(),
            stopped: Arc::default(),
        };
        let (worst_ms, stopped) = (delay.worst_ms.clone(), delay.stopped.clone());
        thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                thread::sleep(SLEEP);
                let delay_ms = start.elapsed().saturating_sub(SLEEP).as_millis();
                worst_ms.fetch_max(
                    u64::try_from(delay_ms).unwrap_or(u64::MAX),
                    Ordering::Relaxed,
                );
            }
        });
        delay
    }

    /// Returns the longest delay so far.
    pub fn worst(&self) -> Duration {
        Duration::from_millis(self.worst_ms.load(Ordering::Relaxed))
    }
}

impl Drop for MachineDelay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
