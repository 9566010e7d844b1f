//! Interval of pings per endpoint.
//!
//! A server may allow fewer pings than the configured interval sends: gRPC servers then send a GOAWAY with
//! `too_many_pings`. Each such GOAWAY doubles the interval of its endpoint, for all later connections to it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Largest number of doublings: a thousand times the configured interval.
const MAX_DOUBLINGS: u32 = 10;

/// Remembers which endpoints are pinged less often. Clones share the memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct PingPace(Arc<Mutex<HashMap<Arc<str>, u32>>>);

impl PingPace {
    /// Returns the interval of pings to an endpoint, for this configured interval.
    pub(super) fn interval(&self, endpoint: &str, configured: Duration) -> Duration {
        let doublings = self.lock().get(endpoint).copied().unwrap_or(0);
        configured.saturating_mul(1 << doublings)
    }

    /// Doubles the interval of an endpoint.
    pub(super) fn slow_down(&self, endpoint: Arc<str>) {
        let mut endpoints = self.lock();
        let doublings = endpoints.entry(endpoint).or_default();
        *doublings = (*doublings + 1).min(MAX_DOUBLINGS);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_doubles_for_one_endpoint() {
        let (pace, seconds) = (PingPace::default(), Duration::from_secs);
        pace.clone().slow_down("a".into());
        assert_eq!(pace.interval("a", seconds(10)), seconds(20));
        assert_eq!(pace.interval("b", seconds(10)), seconds(10));
        for _ in 0..100 {
            pace.slow_down("a".into());
        }
        assert_eq!(pace.interval("a", seconds(10)), seconds(10_240));
        assert_eq!(pace.interval("a", Duration::MAX), Duration::MAX);
    }
}
