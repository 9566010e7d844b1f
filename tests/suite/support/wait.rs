//! Waiting for conditions.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until the condition holds. Panics after 30 s with the description.
pub async fn until(description: &str, condition: impl Fn() -> bool) {
    until_async(description, async || condition()).await;
}

/// Like [`until`], for an asynchronous condition.
pub async fn until_async(description: &str, condition: impl AsyncFn() -> bool) {
    let limit = Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(
            Instant::now() < limit,
            "condition not met within {TIMEOUT:?}: {description}"
        );
        sleep(Duration::from_millis(5)).await;
    }
}

/// Keeps a fault active for this long. The test checks the behaviour during that time.
pub async fn hold(fault: Duration) {
    sleep(fault).await;
}
