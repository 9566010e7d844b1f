//! How late this machine is: what a bound in time allows for on a busy one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const NAP: Duration = Duration::from_millis(10);

/// Measures from its start how much longer a short sleep took than it should.
pub struct Lateness {
    worst: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
}

impl Lateness {
    pub fn watch() -> Self {
        let (worst, done) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (measured, ended) = (worst.clone(), done.clone());
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let start = Instant::now();
                thread::sleep(NAP);
                let late = start.elapsed().saturating_sub(NAP).as_millis();
                measured.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { worst, done }
    }

    /// The worst so far.
    pub fn worst(&self) -> Duration {
        Duration::from_millis(self.worst.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}
