//! Waits for a cluster that is not reachable yet.

use std::time::Duration;

use super::{RetryDecision, decision::remedy};
use crate::{
    error::{Error, ErrorKind, Result},
    runtime::backoff::Backoff,
};

/// Delays between attempts. An attempt waits for a ready member by itself, so these delays only limit how often an
/// attempt that fails at once is repeated.
const ATTEMPT_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(1)).jitter(1.0 / 3.0);

/// Delay before the owner of a request repeats it.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Returns whether the same request may succeed later, so that its owner repeats it for as long as it is needed: the
/// deadline of one call does not end it. A refused token is not temporary: the call has renewed it already.
pub(crate) fn is_temporary(error: &Error) -> bool {
    match remedy(error.kind()) {
        RetryDecision::NextMember | RetryDecision::Backoff | RetryDecision::After(_) => true,
        RetryDecision::RenewToken => false,
        RetryDecision::Fail => matches!(
            error.kind(),
            ErrorKind::DeadlineExceeded | ErrorKind::Overloaded
        ),
    }
}

/// Repeats an attempt until it succeeds or fails with an error that is not [temporary](is_temporary). Without `wait`,
/// makes one attempt.
pub(crate) async fn attempt_until_available<T, F>(
    wait: bool,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut backoff = ATTEMPT_BACKOFF.start();
    loop {
        match attempt().await {
            Err(error) if wait && is_temporary(&error) => {
                tracing::debug!(%error, "request failed, wait for the cluster");
                tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    async fn attempts(wait: bool, kinds: &[ErrorKind]) -> (usize, Option<ErrorKind>) {
        let mut count = 0;
        let result = attempt_until_available(wait, || {
            count += 1;
            let result = match kinds.get(count - 1) {
                Some(kind) => Err(Error::new(*kind, Outcome::NotSent, "")),
                None => Ok(()),
            };
            std::future::ready(result)
        });
        let result = result.await;
        (count, result.err().map(|error| error.kind()))
    }

    #[tokio::test(start_paused = true)]
    async fn only_temporary_errors_are_waited_for() {
        let temporary = [ErrorKind::DeadlineExceeded, ErrorKind::NoLeader];
        assert_eq!(attempts(true, &temporary).await, (3, None));
        let denied = [ErrorKind::DeadlineExceeded, ErrorKind::PermissionDenied];
        assert_eq!(
            attempts(true, &denied).await,
            (2, Some(ErrorKind::PermissionDenied))
        );
        let shutdown = [ErrorKind::Shutdown];
        assert_eq!(
            attempts(true, &shutdown).await,
            (1, Some(ErrorKind::Shutdown))
        );
        assert_eq!(
            attempts(false, &temporary).await,
            (1, Some(ErrorKind::DeadlineExceeded))
        );
    }
}
