//! A session's key in a lock queue.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Ownership, QueueKeys,
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
    pub(in crate::recipes) keys: QueueKeys,
    /// Whether the key existed before this entry. Its value may be a different one.
    pub(in crate::recipes) adopted: bool,
    /// Released when the key is deleted, so that the next task of the session creates a new key.
    pub(super) local_guard: Option<LocalMutexGuard>,
    /// Kept open while the key is used.
    pub(super) _owned_session: Option<Arc<Session>>,
    /// Dropped when the key is deleted.
    pub(super) holder: Option<Holder>,
}

/// The older keys that this entry's key waits for.
#[derive(Debug, PartialEq, Eq)]
enum Blockers {
    /// There are too few to block the entry.
    Admitted,
    /// `keys`, newest first, existed at `revision`. At least `excess` of them have to go.
    Keys {
        keys: Vec<Bytes>,
        revision: i64,
        excess: usize,
    },
    /// This entry's key no longer exists.
    OwnKeyGone,
}

/// How an entry waits in the queue.
pub(in crate::recipes) trait EntryWait: Sync {
    type Output: Send;

    /// Waits while the entry's key is in the queue. If it fails, the entry leaves the queue.
    fn wait(&self, entry: &QueueEntry) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// Waits until no older key blocks the entry, and fails as [`QueueEntry::wait_until_admitted`] does.
pub(in crate::recipes) struct UntilAdmitted;

impl EntryWait for UntilAdmitted {
    type Output = ();

    async fn wait(&self, entry: &QueueEntry) -> Result<()> {
        entry.wait_until_admitted().await
    }
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

    /// Waits until no older key blocks this entry. Fails when the session is lost, the key is deleted, or the lock is
    /// blocked by a key that is not a contender's.
    pub(in crate::recipes) async fn wait_until_admitted(&self) -> Result<()> {
        tokio::select! {
            biased;
            loss = self.ownership.session_lease.ended_or_client_stops() => Err(loss.into()),
            admitted = self.wait_for_blockers() => admitted,
        }
    }

    pub(in crate::recipes) fn client(&self) -> &Client {
        &self.ownership.client
    }

    pub(super) async fn is_admitted(&self) -> Result<bool> {
        Ok(self.blockers().await? == Blockers::Admitted)
    }

    /// Reads which older keys block this one, watches them from now on, and reads again: they may have been deleted
    /// before the watch. A watch from the revision of the first read would need no second one, but etcd serves watches
    /// of past revisions only every 100 ms.
    async fn wait_for_blockers(&self) -> Result<()> {
        let mut watched: Option<(Bytes, Watch)> = None;
        // Older keys are never added later, but a check covers only some of many: the oldest ones and the newest one.
        let mut checked: Option<Bytes> = None;
        loop {
            let step = match self.blockers().await {
                Ok(Blockers::Admitted) => break,
                Ok(Blockers::OwnKeyGone) => return Err(self.why_key_gone().await.into()),
                Ok(Blockers::Keys { keys, .. }) if checked.as_ref() != keys.first() => {
                    let check = self.check_older_keys().await;
                    check.map(|()| checked = keys.into_iter().next())
                }
                Ok(Blockers::Keys {
                    keys,
                    revision,
                    excess,
                }) => {
                    let target = self.watch_target(&keys);
                    match watched.take() {
                        Some((watched, watch)) if watched == target => {
                            self.until_gone(watch, &keys, revision, excess).await
                        }
                        _ => {
                            let watch = self.watch(&target).await;
                            watch.map(|watch| watched = Some((target, watch)))
                        }
                    }
                }
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

    /// Reads, at one revision, whether this entry's key exists and which older keys block it.
    async fn blockers(&self) -> Result<Blockers> {
        let window = i64::try_from(self.keys.rule.window()).unwrap_or(i64::MAX);
        let newest = self.older_keys().keys_only().sort_by_create_revision();
        let newest = newest.descending().limit(window);
        let response = self.ownership.txn().then([newest]).await?;
        Ok(blockers_in(&response, self.keys.rule.blocking_count()))
    }

    fn older_keys(&self) -> Get {
        let older = get(self.keys.blocking()).prefix();
        older.max_create_revision(self.ownership.token - 1)
    }

    /// Returns the key to watch, or the prefix of all blocking keys if more than one key can admit the entry.
    fn watch_target(&self, keys: &[Bytes]) -> Bytes {
        match keys {
            [key] if self.keys.rule.window() == 1 => key.clone(),
            _ => self.keys.blocking(),
        }
    }

    async fn watch(&self, target: &Bytes) -> Result<Watch> {
        let watch = self.ownership.client.watch(target.clone()).filter_puts();
        if self.keys.rule.window() == 1 {
            watch.await
        } else {
            watch.prefix().await
        }
    }

    /// Waits until `excess` of the keys were deleted after `revision`, or until the watch reports something that
    /// requires a new read.
    async fn until_gone(
        &self,
        mut watch: Watch,
        keys: &[Bytes],
        revision: i64,
        mut excess: usize,
    ) -> Result<()> {
        let keys: HashSet<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        while let Some(item) = watch.next().await {
            match item {
                WatchEvent::Events(events) if events.revision() > revision => {
                    for event in &*events {
                        if event.key() == self.ownership.key {
                            return Ok(());
                        }
                        excess = excess.saturating_sub(usize::from(keys.contains(event.key())));
                    }
                    if excess == 0 {
                        return Ok(());
                    }
                }
                // After a restore from a backup, the keys may be different ones.
                WatchEvent::RevisionRegressed { .. } => return Ok(()),
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

    /// Fails if an older key is not a contender's: one of the oldest ones, or the one directly before this entry's key.
    /// Values, which can be large, are read only if a key is bound to no lease: etcd returns no leases without the
    /// values.
    async fn check_older_keys(&self) -> Result<()> {
        let leased = Compare::lease(self.keys.blocking()).ne(0).prefix();
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
                check(&self.keys, &found.kvs)?;
            }
        }
        Ok(())
    }

    /// Returns why this entry's key is gone: etcd deletes it together with the lease, before the session detects the
    /// loss.
    pub(in crate::recipes) async fn why_key_gone(&self) -> OwnershipLost {
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
    pub(in crate::recipes) async fn leave(mut self) -> Result<bool> {
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

fn blockers_in(response: &TxnResponse, blocking_count: usize) -> Blockers {
    if !response.succeeded {
        return Blockers::OwnKeyGone;
    }
    let found = match response.responses.first() {
        Some(OpResponse::Get(found)) => &found.kvs[..],
        _ => &[],
    };
    if found.len() < blocking_count {
        return Blockers::Admitted;
    }
    Blockers::Keys {
        keys: found.iter().map(|kv| kv.key.clone()).collect(),
        revision: response.header.revision,
        excess: found.len() - blocking_count + 1,
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

    fn keys(keys: &[&'static str], excess: usize) -> Blockers {
        Blockers::Keys {
            keys: keys
                .iter()
                .map(|key| Bytes::from_static(key.as_bytes()))
                .collect(),
            revision: 40,
            excess,
        }
    }

    #[test]
    fn exclusive_entry_waits_for_key_before_own() {
        let found = response(true, &["l/1"]);
        assert_eq!(blockers_in(&found, 1), keys(&["l/1"], 1));
        assert_eq!(blockers_in(&response(true, &[]), 1), Blockers::Admitted);
    }

    #[test]
    fn permit_waits_for_as_many_keys_as_are_too_many() {
        let all = ["l/5", "l/4", "l/3", "l/2"];
        assert_eq!(
            blockers_in(&response(true, &all[..2]), 3),
            Blockers::Admitted
        );
        assert_eq!(
            blockers_in(&response(true, &all[..3]), 3),
            keys(&all[..3], 1)
        );
        assert_eq!(blockers_in(&response(true, &all), 3), keys(&all, 2));
    }

    #[test]
    fn entry_without_key_is_never_admitted() {
        assert_eq!(blockers_in(&response(false, &[]), 3), Blockers::OwnKeyGone);
    }
}
