//! Waiting for a condition instead of for a time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until it holds; fails the test, saying what was waited for, if it never does.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    until_async(what, async || condition()).await;
}

/// The same for a condition that has to be asked for.
pub async fn until_async(what: &str, condition: impl AsyncFn() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < limit, "waited in vain: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Lets a fault last: what happens meanwhile is the test.
pub async fn hold(fault: Duration) {
    sleep(fault).await;
}
