//! Waits for a guard with a timeout, and runs work while a guard is held.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use super::{ClaimGuard, Ownership};
use crate::error::{Error, ErrorKind, Outcome, Result};

/// Waits for a request for at most `timeout`. Fails with [`ErrorKind::DeadlineExceeded`] and this reason after it.
pub(in crate::recipes) async fn acquired_within<G>(
    timeout: Duration,
    reason: &'static str,
    request: impl IntoFuture<Output = Result<G>>,
) -> Result<G> {
    match tokio::time::timeout(timeout, request.into_future()).await {
        Ok(acquired) => acquired,
        Err(_) => Err(Error::new(
            ErrorKind::DeadlineExceeded,
            Outcome::Rejected,
            reason,
        )),
    }
}

/// Runs work while the guard is held, then releases it. Drops the work when the ownership is lost.
pub(in crate::recipes) async fn run_under<G, T, F, W>(guard: G, work: W) -> Result<T>
where
    G: ClaimGuard,
    W: FnOnce(Ownership) -> F,
    F: Future<Output = T>,
{
    let ownership = (*guard).clone();
    let mut work = pin!(async { work(ownership).await });
    let mut waiting = pin!(guard.lost());
    let output = poll_fn(|cx| {
        // The process may be paused at any step, so the clock is read directly before the work is polled.
        let loss = match waiting.as_mut().poll(cx) {
            Poll::Ready(loss) => Some(loss),
            Poll::Pending => guard.loss_now(),
        };
        match loss {
            Some(loss) => Poll::Ready(Err(loss)),
            None => work.as_mut().poll(cx).map(Ok),
        }
    })
    .await?;
    // The work is complete, so a failure to release the guard is only logged.
    if let Err(error) = guard.release().await {
        tracing::debug!(%error, "lock not released yet, retrying in the background");
    }
    Ok(output)
}
