//! A participant inside of a double barrier, and how it leaves.

use std::{fmt, ops::Deref};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Ownership, OwnershipLost, ready_key, round::CompleteRound};
use crate::{
    call::deadline_in,
    client::Client,
    error::Result,
    kv::{Compare, OpResponse, delete, get},
    layers::{
        exactly_once::Fence,
        read_then_watch::{KeysUpdate, ReadThenWatch},
    },
    recipes::lock_queue::{ClaimGuard, QueueEntry},
    retry::availability::{RETRY_DELAY, is_temporary},
};

/// A participant of a complete round. Dereferences to its [`Ownership`], whose end means that the participant counts as
/// one that has left. Dropping it leaves in the background, without waiting for the others.
///
/// Drop it when [`Ownership::lost`] resolves: [`Client::shutdown`](crate::Client::shutdown) waits for that.
#[must_use = "dropping the participation leaves the barrier"]
pub struct Participation {
    entry: QueueEntry,
    round: CompleteRound,
}

impl Participation {
    /// Fails if the client shuts down.
    pub(super) fn new(entry: QueueEntry, round: CompleteRound) -> Result<Self> {
        entry.hold()?;
        Ok(Self { entry, round })
    }

    /// Leaves, and waits until all others have left. Continues through outages. Dropping the future after the key of this
    /// participant was deleted only ends the wait.
    ///
    /// Fails with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if the key of this participant was deleted before,
    /// for example with a lost lease: the others have counted it as one that has left. If it fails for another reason,
    /// leaving continues in the background.
    pub async fn leave(self) -> Result<()> {
        let round = LeftRound {
            client: self.entry.client().clone(),
            waiters: self.entry.keys.own(),
            ready: ready_key(&self.entry.keys.prefix),
            round: self.round,
            // Differs among the participants.
            choice: usize::try_from(self.entry.ownership.token()).unwrap_or_default(),
        };
        if !self.entry.leave().await? {
            return Err(OwnershipLost::Taken.into());
        }
        round.ended().await
    }
}

/// A round that one participant has left.
struct LeftRound {
    client: Client,
    /// Prefix of the participants' keys.
    waiters: Bytes,
    ready: Bytes,
    round: CompleteRound,
    choice: usize,
}

impl LeftRound {
    /// Waits until no participant of the round is left, and deletes the ready key.
    ///
    /// Each waiting participant watches one of the keys that are left, and not all the same one: the deletion of a key
    /// wakes few of them.
    async fn ended(&self) -> Result<()> {
        loop {
            let step = match self.keys_left().await {
                Ok((left, ready_exists)) if left.is_empty() => {
                    if ready_exists {
                        self.delete_ready_key().await;
                    }
                    return Ok(());
                }
                Ok((mut left, _)) => {
                    let watched = left.swap_remove(self.choice % left.len());
                    self.key_gone(watched).await
                }
                Err(error) => Err(error),
            };
            match step {
                Ok(()) => {}
                Err(error) if is_temporary(&error) => tokio::time::sleep(RETRY_DELAY).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the keys of the participants that have not left, and whether the ready key of the round exists.
    async fn keys_left(&self) -> Result<(Vec<Bytes>, bool)> {
        let left = get(self.waiters.clone()).prefix().keys_only();
        let left = left.max_create_revision(self.round.last);
        let ready = get(self.ready.clone()).keys_only();
        let response = self.client.txn().then([left, ready]).await?;
        let found = |index: usize| match response.responses.get(index) {
            Some(OpResponse::Get(found)) => &found.kvs[..],
            _ => &[],
        };
        let keys = found(0).iter().map(|kv| kv.key.clone()).collect();
        let is_ready = |revision| revision == self.round.ready_revision;
        let ready_exists = found(1).iter().any(|kv| is_ready(kv.mod_revision));
        Ok((keys, ready_exists))
    }

    /// Waits until this key of the round is gone.
    async fn key_gone(&self, key: Bytes) -> Result<()> {
        let mut updates = ReadThenWatch::key(self.client.clone(), key);
        loop {
            let create_revision = match updates.next().await? {
                KeysUpdate::Snapshot(found) => found.first().map(|kv| kv.create_revision),
                KeysUpdate::Events(events) => {
                    let last_put = events.last().filter(|event| event.is_put());
                    let kv = last_put.and_then(|event| event.kv.as_ref());
                    kv.map(|kv| kv.create_revision)
                }
            };
            if create_revision.is_none_or(|revision| revision > self.round.last) {
                return Ok(());
            }
        }
    }

    /// Deletes the ready key of this round, and not that of a later one. If that fails, a later round replaces it.
    async fn delete_ready_key(&self) {
        let deadline = deadline_in(self.client.request_timeout());
        loop {
            let is_same = Compare::mod_revision(self.ready.clone()).eq(self.round.ready_revision);
            let guarded = self.client.txn().when([is_same]);
            match guarded.then([delete(self.ready.clone())]).await {
                Err(error) if is_temporary(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => {
                    tracing::debug!(%error, key = ?self.ready, "ready key of a double barrier not deleted");
                    return;
                }
                Ok(_) => return,
            }
        }
    }
}

impl ClaimGuard for Participation {
    async fn release(self) -> Result<()> {
        self.leave().await
    }
}

impl Fence for Participation {
    fn fence_conditions(&self) -> Vec<Compare> {
        (**self).fence_conditions()
    }

    fn fence_key(&self) -> Bytes {
        (**self).fence_key()
    }
}

impl Deref for Participation {
    type Target = Ownership;

    fn deref(&self) -> &Ownership {
        &self.entry.ownership
    }
}

impl fmt::Debug for Participation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Participation").field(&**self).finish()
    }
}
