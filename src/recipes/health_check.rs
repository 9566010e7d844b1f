//! A check of the application, which gives up its leadership while it is not well.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use tokio::time::timeout;

type CheckResult = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Asks the application at an interval whether it is well.
#[derive(Clone)]
pub(super) struct HealthCheck {
    interval: Duration,
    check: Arc<dyn Fn() -> CheckResult + Send + Sync>,
}

impl HealthCheck {
    pub(super) fn new<F, R>(interval: Duration, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = bool> + Send + 'static,
    {
        Self {
            interval,
            check: Arc::new(move || Box::pin(check())),
        }
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Runs the check once. A check that panics, or takes longer than the interval, has failed.
    pub(super) async fn is_well(&self) -> bool {
        // On a task of its own, so that a panic does not reach the caller.
        let check = self.check.clone();
        let task = tokio::spawn(async move { check().await });
        let abort = task.abort_handle();
        let result = timeout(self.interval, task).await;
        abort.abort();
        matches!(result, Ok(Ok(true)))
    }

    /// Waits until the check fails.
    pub(super) async fn failed(&self) {
        while self.is_well().await {
            tokio::time::sleep(self.interval).await;
        }
    }

    /// Waits until the check succeeds.
    pub(super) async fn succeeded(&self) {
        while !self.is_well().await {
            tokio::time::sleep(self.interval).await;
        }
    }
}

impl fmt::Debug for HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthCheck")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn late_or_panicking_check_has_failed() {
        let pending = HealthCheck::new(SECOND, std::future::pending);
        assert!(!pending.is_well().await);
        let panicking = HealthCheck::new(SECOND, || async { panic!("the check of a test fails") });
        assert!(!panicking.is_well().await);
    }

    #[tokio::test(start_paused = true)]
    async fn check_is_repeated_until_it_changes() {
        let checks = Arc::new(AtomicU32::new(0));
        let counter = checks.clone();
        // Well three times, then not, then well again.
        let check = HealthCheck::new(SECOND, move || {
            let n = counter.fetch_add(1, Ordering::SeqCst);
            async move { !(3..5).contains(&n) }
        });
        let begin = tokio::time::Instant::now();
        check.failed().await;
        assert_eq!(begin.elapsed(), 3 * SECOND);
        check.succeeded().await;
        assert_eq!(checks.load(Ordering::SeqCst), 6);
    }
}
