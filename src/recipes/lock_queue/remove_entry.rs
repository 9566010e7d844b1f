//! Deletes a session's key from a lock queue.

use std::time::Duration;

use tokio::time::Instant;

use super::Ownership;
use crate::{
    error::{ErrorKind, Outcome, Result},
    kv::delete,
    recipes::session::LocalMutexGuard,
    retry::availability::{RETRY_DELAY, is_temporary},
    runtime::backoff::Backoff,
};

/// How late a write without a response can still be applied.
const LATE_WRITE_WINDOW: Duration = Duration::from_secs(10);
/// Delays between deletes that etcd refuses.
const REFUSED_BACKOFF: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(5));

/// Deletes the key and returns whether it still represented this ownership.
pub(in crate::recipes) async fn remove(ownership: &Ownership) -> Result<bool> {
    let response = ownership
        .txn()
        .then([delete(ownership.key.clone())])
        .await?;
    Ok(response.succeeded)
}

/// Retries until the key is gone or the client is shut down.
///
/// Keeps the local mutex locked while a delete without a response may still be applied: the next task of the session
/// would find the key, adopt it, and lose it to that delete. If etcd refuses deletes, the mutex is unlocked between
/// attempts, so that other tasks get the error themselves.
pub(super) async fn remove_until_gone(ownership: &Ownership, guard: LocalMutexGuard) {
    let local_mutex = LocalMutexGuard::mutex(&guard).clone();
    let mut guard = Some(guard);
    let mut backoff = REFUSED_BACKOFF.start();
    let mut deletes_settled_at = Instant::now();
    loop {
        let error = match remove(ownership).await {
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => error,
        };
        if error.outcome() == Outcome::Unknown {
            deletes_settled_at = Instant::now() + LATE_WRITE_WINDOW;
        }
        if is_temporary(&error) {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        }
        tracing::warn!(%error, key = ?ownership.key, "key in a lock queue not deleted yet");
        if Instant::now() >= deletes_settled_at {
            guard = None;
        }
        tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
        if guard.is_none() {
            guard = Some(local_mutex.clone().lock_owned().await);
        }
    }
}
