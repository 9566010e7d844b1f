//! Deletes keys that arrive late: a request without a response may create its key at any time, up to the end of the
//! lease. No task would use that key, and all contenders would wait for it.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Ownership, remove_entry::remove_until_gone};
use crate::{
    error::{ErrorKind, Result},
    kv::KeyValue,
    layers::read_then_watch::{KeysUpdate, ReadThenWatch},
    proto::Event,
    recipes::session::{FollowLateKey, LateKey, LocalMutex},
    runtime::backoff::Backoff,
};

/// Interval of checks whether the session still uses a key, and of reads of the lease's keys.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Delays before a key is read and watched again after an error.
const FAILURE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Deletes the key of this ownership whenever it appears while no task of the session uses it, until the lease ends.
/// Continues in the background; further calls for the same key have no effect.
pub(super) fn delete_when_late(ownership: &Ownership, local_mutex: &LocalMutex) {
    let key = &ownership.key;
    let Some(follow) = ownership.session_lease.add_late_key(key, local_mutex) else {
        return;
    };
    let (ownership, local_mutex) = (ownership.for_background(), local_mutex.clone());
    ownership.client.clone().run(move || {
        actix_rt::spawn(async move {
            let cleanup = async {
                match follow {
                    FollowLateKey::Followed => {}
                    FollowLateKey::Watch => watch_key(&ownership, &local_mutex).await,
                    FollowLateKey::Poll(late_keys) => poll_lease(&ownership, late_keys).await,
                }
            };
            tokio::select! {
                _ = ownership.session_lease.ended() => {}
                () = cleanup => {}
            }
        });
    });
}

/// Deletes the key each time it appears. Returns when the client is shut down.
async fn watch_key(ownership: &Ownership, local_mutex: &LocalMutex) {
    let mut backoff = FAILURE_BACKOFF.start();
    let mut updates = ReadThenWatch::key(ownership.client.clone(), ownership.key.clone());
    loop {
        let update = updates.next().await;
        let exists = match &update {
            Ok(KeysUpdate::Snapshot(found)) => found.first().is_some(),
            Ok(KeysUpdate::Events(events)) => events.last().is_some_and(Event::is_put),
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) => {
                tracing::debug!(%error, key = ?ownership.key, "watch of a late lock key failed");
                tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
                continue;
            }
        };
        backoff = FAILURE_BACKOFF.start();
        if exists {
            delete_when_unused(ownership, local_mutex).await;
        }
    }
}

/// Reads the keys of the lease at intervals and deletes those among `late_keys`. Returns when the client is shut down.
async fn poll_lease(ownership: &Ownership, mut late_keys: UnboundedReceiver<LateKey>) {
    let mut followed = HashMap::<Bytes, LocalMutex>::new();
    loop {
        while let Ok((key, local_mutex)) = late_keys.try_recv() {
            followed.insert(key, local_mutex);
        }
        let lease = ownership.client.time_to_live(ownership.lease());
        let found = match lease.with_keys().await {
            Ok(lease) => lease.keys,
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(_) => Vec::new(),
        };
        for key in found {
            let Some(local_mutex) = followed.get(&key) else {
                continue;
            };
            let late = Ownership {
                key,
                ..ownership.clone()
            };
            // A key in use is checked again in the next round: waiting for it here would delay the other keys.
            delete_unless_used(&late, local_mutex).await;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Waits until no task of the session uses the key, and deletes it if it still exists.
async fn delete_when_unused(ownership: &Ownership, local_mutex: &LocalMutex) {
    while !delete_unless_used(ownership, local_mutex).await {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Deletes the key if it still exists. Returns `false` if a task of the session uses it, or if it cannot be read.
///
/// A task that wants the lock meanwhile locks the local mutex first and adopts the key, or waits for the delete. The
/// mutex is not locked for the read: a `try_lock` of the application would fail although no session has the lock.
async fn delete_unless_used(ownership: &Ownership, local_mutex: &LocalMutex) -> bool {
    let in_use = local_mutex.try_lock().is_err();
    if in_use {
        return false;
    }
    let late = match find_late_key(ownership).await {
        Ok(None) => return true,
        Ok(Some(late)) => late,
        Err(error) => return error.kind() == ErrorKind::Shutdown,
    };
    let Ok(guard) = local_mutex.clone().try_lock_owned() else {
        return false;
    };
    tracing::warn!(key = ?late.key, "delete late key in a lock queue");
    remove_until_gone(&late, guard).await;
    true
}

/// Returns the key if it exists and is bound to the session's lease.
async fn find_late_key(ownership: &Ownership) -> Result<Option<Ownership>> {
    let found = ownership.client.get(ownership.key.clone()).await?;
    let is_late = |kv: &&KeyValue| kv.lease == ownership.lease();
    Ok(found.first().filter(is_late).map(|kv| Ownership {
        token: kv.create_revision,
        ..ownership.clone()
    }))
}
