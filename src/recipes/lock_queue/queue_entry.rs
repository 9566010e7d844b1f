//! A session's key in a lock queue.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Ownership,
    contenders::{check_contenders, check_leased_keys},
    remove_entry::{remove, remove_until_gone},
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{ErrorKind, Outcome, Result},
    kv::{Compare, Get, OpResponse, TxnResponse, get},
    lease::LeaseLost,
    recipes::{
        ownership_lost::OwnershipLost,
        session::{LocalMutexGuard, Session},
        txn_read::first_key,
    },
    retry::availability::{RETRY_DELAY, is_temporary},
    runtime::holders::Holder,
    watch::{Watch, WatchEvent},
};

/// Maximum number of the oldest keys that are checked when a session waits in the queue: by their names only, and with
/// their values.
const MAX_CHECKED_NAMES: i64 = 512;
const MAX_CHECKED_KEYS: i64 = 16;

/// A key in the queue. Dropping it deletes the key in the background.
pub(in crate::recipes) struct QueueEntry {
    pub(in crate::recipes) ownership: Ownership,
    pub(super) prefix: Bytes,
    /// Whether the key existed before this entry. Its value may be a different one.
    pub(in crate::recipes) adopted: bool,
    /// Released when the key is deleted, so that the next task of the session creates a new key.
    pub(super) local_guard: Option<LocalMutexGuard>,
    /// Kept open while the key is used.
    pub(super) _owned_session: Option<Arc<Session>>,
    /// Dropped when the key is deleted.
    pub(super) holder: Option<Holder>,
}

/// The key directly before this entry's key.
#[derive(Debug, PartialEq, Eq)]
enum Predecessor {
    /// This entry's key is the first one.
    None,
    /// The key to wait for.
    Key(Bytes),
    /// This entry's key no longer exists.
    OwnKeyGone,
}

impl QueueEntry {
    /// Marks the lock as held. Fails if the client shuts down. A shutdown that begins later waits until this entry is
    /// dropped or left before it gives up the lock.
    pub(in crate::recipes) fn hold(&self) -> Result<()> {
        let held = self
            .holder
            .as_ref()
            .map(|holder| holder.hold(Duration::ZERO));
        if held == Some(false) {
            return Err(OwnershipLost::Session(LeaseLost::Shutdown).into());
        }
        Ok(())
    }

    /// Replaces the client of this entry by that of its owner, which keeps the client running.
    pub(super) fn with_client(mut self, client: &Client) -> Self {
        self.ownership.client = client.clone();
        self
    }

    /// Waits until this entry's key is the first one. Fails when the session is lost, the key is deleted, or the lock is
    /// blocked by a key that is not a contender's.
    pub(in crate::recipes) async fn wait_until_first(&self) -> Result<()> {
        tokio::select! {
            biased;
            loss = self.ownership.session_lease.ended_or_client_stops() => Err(loss.into()),
            first = self.wait_for_predecessors() => first,
        }
    }

    pub(in crate::recipes) fn client(&self) -> &Client {
        &self.ownership.client
    }

    pub(super) async fn is_first(&self) -> Result<bool> {
        Ok(self.predecessor().await? == Predecessor::None)
    }

    /// Reads which key is directly before this one, watches that key from now on, and reads again: it may have been
    /// deleted before the watch. A watch from the revision of the first read would need no second one, but etcd serves
    /// watches of past revisions only every 100 ms.
    async fn wait_for_predecessors(&self) -> Result<()> {
        let mut watched: Option<(Bytes, Watch)> = None;
        // Older keys are never added later, but a check covers only some of many: the oldest ones and the predecessor.
        let mut checked: Option<Bytes> = None;
        loop {
            let step = match self.predecessor().await {
                Ok(Predecessor::None) => break,
                Ok(Predecessor::OwnKeyGone) => return Err(self.why_key_gone().await.into()),
                Ok(Predecessor::Key(key)) if checked.as_ref() != Some(&key) => {
                    let check = self.check_older_keys().await;
                    check.map(|()| checked = Some(key))
                }
                Ok(Predecessor::Key(key)) => match watched.take() {
                    Some((same_key, watch)) if same_key == key => deleted(watch).await,
                    _ => {
                        let watch = self.ownership.client.watch(key.clone()).filter_puts().await;
                        watch.map(|watch| watched = Some((key, watch)))
                    }
                },
                Err(error) => Err(error),
            };
            match step {
                Ok(()) => {}
                Err(error) if is_temporary(&error) => tokio::time::sleep(RETRY_DELAY).await,
                Err(error) => return Err(error),
            }
        }
        Ok(self.ownership.session_lease.certain().await?)
    }

    /// Reads, at one revision, whether this entry's key exists and which key is directly before it.
    async fn predecessor(&self) -> Result<Predecessor> {
        let before = self.older_keys().keys_only().last_by_create_revision();
        let response = self.ownership.txn().then([before]).await?;
        Ok(predecessor_in(&response))
    }

    fn older_keys(&self) -> Get {
        let older = get(self.prefix.clone()).prefix();
        older.max_create_revision(self.ownership.token - 1)
    }

    /// Fails if an older key is not a contender's: one of the oldest ones, or the one directly before this entry's key.
    /// Values, which can be large, are read only if a key is bound to no lease: etcd returns no leases without the
    /// values.
    async fn check_older_keys(&self) -> Result<()> {
        let leased = Compare::lease(self.prefix.clone()).ne(0).prefix();
        let names = self.older_keys().keys_only().limit(MAX_CHECKED_NAMES);
        let keys = self.older_keys().limit(MAX_CHECKED_KEYS);
        let before = self.older_keys().last_by_create_revision();
        let name_before = before.clone().keys_only();
        let response = self
            .ownership
            .client
            .txn()
            .when([leased])
            .then([names.sort_by_create_revision(), name_before])
            .otherwise([keys.sort_by_create_revision(), before])
            .await?;
        let check = if response.succeeded {
            check_leased_keys
        } else {
            check_contenders
        };
        for found in &response.responses {
            if let OpResponse::Get(found) = found {
                check(&self.prefix, &found.kvs)?;
            }
        }
        Ok(())
    }

    /// Returns why this entry's key is gone: etcd deletes it together with the lease, before the session detects the
    /// loss.
    async fn why_key_gone(&self) -> OwnershipLost {
        let lease = self.ownership.lease();
        match self.ownership.client.time_to_live(lease).await {
            Ok(found) if found.remaining.is_none() => {
                // The response makes the client report the loss at once instead of at the next keepalive.
                let _ = self.ownership.client.keep_alive_once(lease).await;
                OwnershipLost::Session(LeaseLost::Revoked)
            }
            Ok(_) | Err(_) => OwnershipLost::Taken,
        }
    }

    /// Reports that the work under the lock has ended.
    fn mark_stopped(&self) {
        if let Some(holder) = &self.holder {
            holder.stop();
        }
    }

    /// Deletes the key. Fails with [`ErrorKind::LockLost`] if it belonged to this entry no longer.
    pub(in crate::recipes) async fn release(self) -> Result<()> {
        if self.leave().await? {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }

    /// Deletes the key and returns whether it belonged to this entry until then. If that fails, deleting continues in
    /// the background.
    pub(super) async fn leave(mut self) -> Result<bool> {
        self.mark_stopped();
        let deadline = deadline_in(self.ownership.client.request_timeout());
        let mut outcome_unknown = false;
        loop {
            match remove(&self.ownership).await {
                Ok(removed) => {
                    self.local_guard = None;
                    return Ok(removed || outcome_unknown);
                }
                Err(error) => {
                    outcome_unknown |= error.outcome() == Outcome::Unknown;
                    if !is_temporary(&error) || Instant::now() > deadline {
                        return Err(error);
                    }
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.mark_stopped();
        let Some(guard) = self.local_guard.take() else {
            return;
        };
        let ownership = self.ownership.for_background();
        let holder = self.holder.take();
        // If the client was shut down, its session and the key have ended with it.
        self.ownership.client.run(move || {
            actix_rt::spawn(async move {
                tokio::select! {
                    biased;
                    // etcd deletes the key with its lease. The key of a detached session stays until then.
                    _ = ownership.session_lease.ended() => {}
                    () = remove_until_gone(&ownership, guard) => {}
                }
                drop(holder);
            });
        });
    }
}

/// Waits until the watch reports that its key was deleted, or ends in a way that requires a new read.
async fn deleted(mut watch: Watch) -> Result<()> {
    while let Some(item) = watch.next().await {
        match item {
            // After a restore from a backup, the key may be a different one.
            WatchEvent::Events(_) | WatchEvent::RevisionRegressed { .. } => return Ok(()),
            WatchEvent::Ended(end) => {
                let error = end.to_error();
                // The next read shows what was compacted or restored.
                return match error.kind() {
                    ErrorKind::Compacted | ErrorKind::RevisionRegressed => Ok(()),
                    _ => Err(error),
                };
            }
            _ => {}
        }
    }
    Ok(())
}

fn predecessor_in(response: &TxnResponse) -> Predecessor {
    if !response.succeeded {
        return Predecessor::OwnKeyGone;
    }
    match first_key(response) {
        Some(before) => Predecessor::Key(before.key.clone()),
        None => Predecessor::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv::GetResponse,
        proto::{KeyValue, ResponseHeader},
    };

    fn response(succeeded: bool, before: &[&'static str]) -> TxnResponse {
        let header = ResponseHeader {
            revision: 40,
            ..ResponseHeader::default()
        };
        let kvs = before.iter().map(|key| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            ..KeyValue::default()
        });
        let found = GetResponse {
            header,
            kvs: kvs.collect(),
            more: false,
            count: 0,
        };
        TxnResponse {
            header,
            succeeded,
            responses: if succeeded {
                vec![OpResponse::Get(found)]
            } else {
                Vec::new()
            },
        }
    }

    #[test]
    fn predecessor_is_key_before_own() {
        assert_eq!(
            predecessor_in(&response(true, &["l/1"])),
            Predecessor::Key(Bytes::from_static(b"l/1"))
        );
        assert_eq!(predecessor_in(&response(true, &[])), Predecessor::None);
    }

    #[test]
    fn entry_without_key_is_never_first() {
        assert_eq!(
            predecessor_in(&response(false, &[])),
            Predecessor::OwnKeyGone
        );
    }
}
