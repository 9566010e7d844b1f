//! Waiting for conditions.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Limit for one step of a test, long enough for a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until the condition holds. Panics after 30 s with the description.
pub async fn until(description: &str, condition: impl Fn() -> bool) {
    until_async(description, async || condition()).await;
}

/// Like [`until`], for an asynchronous condition.
pub async fn until_async(description: &str, condition: impl AsyncFn() -> bool) {
    let limit = Instant::now() + TEST_TIMEOUT;
    while !condition().await {
        assert!(
            Instant::now() < limit,
            "condition not met within {TEST_TIMEOUT:?}: {description}"
        );
        sleep(Duration::from_millis(5)).await;
    }
}

/// Keeps the current state for a fixed time: a fault that lasts, a token that expires, a period without requests.
pub async fn hold(duration: Duration) {
    sleep(duration).await;
}
