//! Deletes a session's key from a lock queue.

use std::time::Duration;

use tokio::time::Instant;

use super::Ownership;
use crate::{
    error::{ErrorKind, Outcome, Result},
    kv::delete,
    recipes::{
        session::{LocalMutex, LocalMutexGuard},
        temporary_errors::{RETRY_DELAY, is_temporary},
    },
    runtime::backoff::Backoff,
};

/// How late a write without a response can still be applied.
const LATE_WRITE_WINDOW: Duration = Duration::from_secs(10);
/// Delays between deletes that etcd refuses.
const REFUSED_BACKOFF: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(5));

/// Deletes the key and returns whether it still represented this ownership.
pub(super) async fn remove(ownership: &Ownership) -> Result<bool> {
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
        tracing::warn!(%error, key = ?ownership.key, "key of a lock or an election not deleted yet");
        if Instant::now() >= deletes_settled_at {
            guard = None;
        }
        tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
        if guard.is_none() {
            guard = Some(local_mutex.clone().lock_owned().await);
        }
    }
}

/// Deletes keys that create requests without a response still create, on a background task. Skips a check while a task
/// of the session uses the key.
pub(super) fn remove_late_creates(ownership: &Ownership, local_mutex: LocalMutex) {
    let ownership = ownership.clone();
    ownership.client.clone().run(move || {
        actix_rt::spawn(async move {
            let end = Instant::now() + LATE_WRITE_WINDOW;
            while Instant::now() < end {
                tokio::select! {
                    _ = ownership.session_lease.ended() => return,
                    () = tokio::time::sleep(LATE_WRITE_WINDOW / 10) => {}
                }
                let Ok(guard) = local_mutex.clone().try_lock_owned() else {
                    continue;
                };
                // A failed read is repeated in the next round.
                if let Ok(Some(late)) = find_late_create(&ownership).await {
                    tokio::select! {
                        _ = ownership.session_lease.ended() => return,
                        () = remove_until_gone(&late, guard) => {}
                    }
                }
            }
        });
    });
}

/// Returns the key if a late request has created it.
async fn find_late_create(ownership: &Ownership) -> Result<Option<Ownership>> {
    let found = ownership.client.get(ownership.key.clone()).await?;
    let late = found.first().filter(|kv| kv.lease == ownership.lease());
    Ok(late.map(|kv| Ownership {
        token: kv.create_revision,
        ..ownership.clone()
    }))
}
