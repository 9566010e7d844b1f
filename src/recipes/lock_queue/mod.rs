//! The queue in etcd behind locks and elections: one key per session under a common prefix.
//!
//! A key is `<name>/<lease in hex>`, as in the Go client's `concurrency` package. The key with the lowest create
//! revision owns the lock; each other session waits until the key before its own is deleted. The create revision is
//! the fencing token.
//!
//! A request to join goes through these steps:
//! 1. The task locks the session's local mutex for the prefix, since the session has one key per queue.
//! 2. `create_entry` creates the key, on a task that outlives a caller that gives up.
//! 3. [`QueueEntry::wait_until_first`] waits until no older key is left and the lease is certain.
//! 4. Dropping or leaving the [`QueueEntry`] deletes the key (`remove_entry`), then unlocks the local mutex.
//!
//! A lost lease ends each step: the session actor sets the lease's status, and every step and [`Ownership::lost`] wait
//! for its end through a [`SessionLease`].

mod claim_handle;
mod create_entry;
mod late_key_cleanup;
mod ownership;
mod queue_entry;
mod remove_entry;

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use tokio::{sync::oneshot, time::timeout};

pub use claim_handle::ClaimHandle;
pub(super) use claim_handle::{ClaimEvent, ClaimGuard, claim};
use create_entry::{CreateEntry, JoinMode};
pub use ownership::Ownership;
pub(super) use queue_entry::QueueEntry;

use super::{
    ownership_lost::OwnershipLost,
    session::{
        LocalMutex, LocalMutexGuard, Session, SessionLease, SessionState, session_lost_if_no_lease,
    },
};
use crate::{
    client::Client,
    error::{Error, Result},
    kv::{Compare, put},
};

/// The queue of one lock or election, as one session uses it.
#[derive(Clone)]
pub(super) struct LockQueue {
    pub(super) client: Client,
    session: Arc<SessionState>,
    pub(super) prefix: Bytes,
}

impl LockQueue {
    pub(super) fn new(session: &Session, name: &Bytes) -> Self {
        Self {
            client: session.client().clone(),
            session: session.state().clone(),
            prefix: queue_prefix(name),
        }
    }

    fn local_mutex(&self) -> LocalMutex {
        self.session.local_mutexes.get(&self.prefix)
    }

    async fn lock_locally(&self, lease: &SessionLease) -> Result<LocalMutexGuard> {
        tokio::select! {
            biased;
            loss = lease.ended() => Err(loss.into()),
            guard = self.local_mutex().lock_owned() => Ok(guard),
        }
    }

    /// Creates the session's key behind the existing keys.
    pub(super) async fn join(&self, value: Bytes) -> Result<QueueEntry> {
        let lease = SessionLease::current(&self.session)?;
        let guard = self.lock_locally(&lease).await?;
        let entry = self.create(lease, guard, value, JoinMode::AtEnd).await?;
        entry.ok_or_else(|| OwnershipLost::Taken.into())
    }

    /// Joins the queue and waits until the session is first. On `cancel`, leaves the queue and returns `None`; in an
    /// outage, leaving continues in the background.
    pub(super) async fn join_and_wait(
        &self,
        value: Bytes,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<QueueEntry>> {
        let lease = SessionLease::current(&self.session)?;
        let guard = tokio::select! {
            biased;
            _ = &mut *cancel => return Ok(None),
            guard = self.lock_locally(&lease) => guard?,
        };
        let mut creating = pin!(self.create(lease, guard, value, JoinMode::AtEnd));
        let entry = tokio::select! {
            biased;
            _ = &mut *cancel => {
                // The key can only be deleted once the request that creates it has ended.
                let created = timeout(self.client.request_timeout(), creating).await;
                if let Ok(Ok(Some(entry))) = created {
                    leave(entry).await;
                }
                return Ok(None);
            }
            created = &mut creating => created?.ok_or(OwnershipLost::Taken)?,
        };
        let is_first = tokio::select! {
            biased;
            _ = cancel => false,
            first = entry.wait_until_first() => first.map(|()| true)?,
        };
        if !is_first {
            leave(entry).await;
            return Ok(None);
        }
        Ok(Some(entry))
    }

    /// Creates the session's key if the queue is empty. Returns `None` and leaves no key behind otherwise.
    pub(super) async fn join_if_empty(&self, value: Bytes) -> Result<Option<QueueEntry>> {
        let lease = SessionLease::current(&self.session)?;
        let Ok(guard) = self.local_mutex().try_lock_owned() else {
            return Ok(None);
        };
        let entry = self.create(lease, guard, value, JoinMode::IfEmpty).await?;
        match entry {
            // Created by an earlier request without a response, possibly behind other keys.
            Some(entry) if entry.adopted && !entry.is_first().await? => {
                entry.leave().await?;
                Ok(None)
            }
            entry => Ok(entry),
        }
    }

    /// Binds an existing key with this create revision to the session's lease. Returns `None` if there is no such key.
    pub(super) async fn take_over(
        &self,
        key: Bytes,
        token: i64,
        value: Bytes,
    ) -> Result<Option<QueueEntry>> {
        let lease = SessionLease::current(&self.session)?;
        let guard = self.lock_locally(&lease).await?;
        let rebind = self
            .client
            .txn()
            .when([Compare::create_revision(key.clone()).eq(token)])
            .then([put(key.clone(), value).lease(lease.id())])
            .await
            .map_err(session_lost_if_no_lease)?;
        Ok(rebind.succeeded.then(|| QueueEntry {
            ownership: Ownership {
                client: self.client.clone(),
                session_lease: lease,
                key,
                token,
            },
            prefix: self.prefix.clone(),
            adopted: true,
            local_guard: Some(guard),
        }))
    }

    /// Creates the key on a separate task that continues if this future is dropped: a put that is cancelled halfway
    /// could be applied after the delete that should undo it.
    async fn create(
        &self,
        lease: SessionLease,
        guard: LocalMutexGuard,
        value: Bytes,
        mode: JoinMode,
    ) -> Result<Option<QueueEntry>> {
        let task = CreateEntry {
            ownership: Ownership {
                client: self.client.clone(),
                key: entry_key(&self.prefix, lease.id()),
                session_lease: lease.clone(),
                token: 0,
            },
            prefix: self.prefix.clone(),
            local_mutex: self.local_mutex(),
            value,
            mode,
            outcome_unknown: false,
        };
        let (created, entry) = oneshot::channel();
        let started = self.client.run(move || {
            actix_rt::spawn(task.run(guard, created));
        });
        if !started {
            return Err(Error::shut_down());
        }
        tokio::select! {
            biased;
            loss = lease.ended() => Err(loss.into()),
            entry = entry => entry.map_err(|_| Error::shut_down())?,
        }
    }
}

async fn leave(entry: QueueEntry) {
    if let Err(error) = entry.leave().await {
        tracing::debug!(%error, "lock queue not left yet, retrying in the background");
    }
}

/// Returns the prefix of all keys of a lock or an election.
pub(super) fn queue_prefix(name: &Bytes) -> Bytes {
    [name, &b"/"[..]].concat().into()
}

fn entry_key(prefix: &Bytes, lease: i64) -> Bytes {
    let mut key = prefix.to_vec();
    key.extend_from_slice(format!("{lease:x}").as_bytes());
    key.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_key_matches_go_client() {
        let prefix = queue_prefix(&Bytes::from_static(b"jobs/cleaner"));
        assert_eq!(entry_key(&prefix, 0x0070_ffab), "jobs/cleaner/70ffab");
    }
}
