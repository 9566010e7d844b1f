//! The queue in etcd behind locks and elections: one key per session under a common prefix.
//!
//! A key is `<name>/<lease in hex>`, as in the Go client's `concurrency` package. The key with the lowest create
//! revision owns the lock; each other session waits until the key before its own is deleted. The create revision is
//! the fencing token.
//!
//! A request to join goes through these steps:
//! 1. The task locks the session's local mutex for the prefix, since the session has one key per queue.
//! 2. `create_entry` creates the key, on a task that outlives a caller that gives up.
//! 3. [`QueueEntry::wait_until_first`] waits until no older key is left and the lease is certain. It fails if an older
//!    key is not a contender's (`contenders`).
//! 4. Dropping or leaving the [`QueueEntry`] deletes the key (`remove_entry`), then unlocks the local mutex.
//!
//! A lost lease ends each step: the session actor sets the lease's status, and every step and [`Ownership::lost`] wait
//! for its end through a [`SessionLease`]. If the session heals, a request that waits joins the queue again with the new
//! lease.
//!
//! A request to create the key whose outcome is unknown may be applied much later. `late_key_cleanup` deletes its key.

mod claim_handle;
mod contenders;
mod create_entry;
mod late_key_cleanup;
mod ownership;
mod queue_builder;
mod queue_entry;
mod remove_entry;

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

pub use claim_handle::ClaimHandle;
pub(super) use claim_handle::{ClaimEvent, ClaimGuard, claim};
pub(super) use contenders::{check_prefix, is_contender, queue_prefix};
use create_entry::{CreateEntry, JoinMode};
use late_key_cleanup::delete_when_late;
pub use ownership::Ownership;
pub(super) use queue_builder::QueueBuilder;
pub(super) use queue_entry::QueueEntry;
pub(super) use remove_entry::remove;

use super::{
    ownership_lost::OwnershipLost,
    session::{
        LocalMutex, LocalMutexGuard, Session, SessionLease, SessionState, session_lost_if_no_lease,
    },
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Result},
    kv::{Compare, put},
    retry::availability::{RETRY_DELAY, is_temporary},
};

/// The queue of one lock or election, as one session uses it.
#[derive(Clone)]
pub(super) struct LockQueue {
    pub(super) client: Client,
    session: Arc<SessionState>,
    /// Whether the session replaces a lost lease.
    heals: bool,
    /// The session, if it belongs to this lock or election and its guards.
    owned_session: Option<Arc<Session>>,
    pub(super) prefix: Bytes,
}

impl LockQueue {
    pub(super) fn new(session: &Session, name: &Bytes) -> Self {
        Self {
            client: session.client().clone(),
            session: session.state().clone(),
            heals: session.heals(),
            owned_session: None,
            prefix: queue_prefix(name),
        }
    }

    /// Returns the queue for background work, which does not keep the client running.
    pub(super) fn for_background(self) -> Self {
        Self {
            client: self.client.for_background(),
            ..self
        }
    }

    fn local_mutex(&self) -> LocalMutex {
        self.session.local_mutexes.get(&self.prefix)
    }

    async fn lock_locally(&self, lease: &SessionLease) -> Result<LocalMutexGuard> {
        tokio::select! {
            biased;
            loss = lease.ended_or_client_stops() => Err(loss.into()),
            guard = self.local_mutex().lock_owned() => Ok(guard),
        }
    }

    /// Returns the session's lease. Waits for a new one while the session heals.
    async fn lease(&self) -> Result<SessionLease> {
        check_prefix(&self.prefix)?;
        if self.heals {
            Ok(SessionLease::healed(&self.session).await?)
        } else {
            Ok(SessionLease::current(&self.session)?)
        }
    }

    /// Joins the queue and waits until the session is first.
    pub(super) async fn acquire(&self, value: Bytes) -> Result<QueueEntry> {
        let (_not_cancelled, mut cancel) = oneshot::channel();
        let entry = self.join_and_wait(value, &mut cancel).await?;
        entry.ok_or_else(|| OwnershipLost::Taken.into())
    }

    /// Joins the queue and waits until the session is first. On `cancel`, leaves the queue and returns `None`; in an
    /// outage, leaving continues in the background.
    ///
    /// If the session heals, the loss of its lease does not end the wait: the queue is joined again at its end.
    pub(super) async fn join_and_wait(
        &self,
        value: Bytes,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<QueueEntry>> {
        loop {
            let lease = tokio::select! {
                biased;
                _ = &mut *cancel => return Ok(None),
                lease = self.lease() => lease?,
            };
            let waited = self.wait_with(lease.clone(), value.clone(), cancel).await;
            match waited {
                Err(error)
                    if self.heals
                        && error.kind() == ErrorKind::SessionLost
                        && !self.client.holders().is_stopping() =>
                {
                    tracing::debug!(%error, prefix = ?self.prefix, "lock request lost its lease, join the queue again");
                    tokio::select! {
                        biased;
                        _ = &mut *cancel => return Ok(None),
                        _ = lease.ended_or_client_stops() => {}
                    }
                }
                waited => return waited,
            }
        }
    }

    async fn wait_with(
        &self,
        lease: SessionLease,
        value: Bytes,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<QueueEntry>> {
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
            _ = cancel => Ok(false),
            first = entry.wait_until_first() => first.map(|()| true),
        };
        match is_first {
            Ok(true) => Ok(Some(entry)),
            Ok(false) => {
                leave(entry).await;
                Ok(None)
            }
            // Other errors mean that the key is gone, or that requests fail: dropping the entry deletes it.
            Err(error) if error.kind() == ErrorKind::LockBlocked => {
                leave(entry).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the session's key if the queue is empty. Returns `None` and leaves no key behind otherwise.
    pub(super) async fn join_if_empty(&self, value: Bytes) -> Result<Option<QueueEntry>> {
        let lease = self.lease().await?;
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
        let lease = self.lease().await?;
        let guard = self.lock_locally(&lease).await?;
        let holder = self.client.holders().register(lease.id());
        let ownership = self.ownership(lease, key, token);
        let deadline = deadline_in(self.client.request_timeout());
        let mut unknown_outcome = UnknownOutcome::new(&ownership, self.local_mutex());
        loop {
            match rebind_once(&ownership, &value, &mut unknown_outcome).await {
                Ok(Rebind::Bound) => break,
                Ok(Rebind::Gone) => return Ok(None),
                Ok(Rebind::Changed) => {}
                Err(error) if is_temporary(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(session_lost_if_no_lease(error)),
            }
        }
        unknown_outcome.resolve();
        Ok(Some(QueueEntry {
            ownership,
            prefix: self.prefix.clone(),
            adopted: true,
            local_guard: Some(guard),
            _owned_session: self.owned_session.clone(),
            holder: Some(holder),
        }))
    }

    fn ownership(&self, session_lease: SessionLease, key: Bytes, token: i64) -> Ownership {
        Ownership::new(self.client.clone(), session_lease, key, token)
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
            ownership: self
                .ownership(lease.clone(), entry_key(&self.prefix, lease.id()), 0)
                .for_background(),
            prefix: self.prefix.clone(),
            owned_session: self.owned_session.clone(),
            local_mutex: self.local_mutex(),
            holder: self.client.holders().register(lease.id()),
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
            loss = lease.ended_or_client_stops() => Err(loss.into()),
            entry = entry => {
                let entry = entry.map_err(|_| Error::shut_down())??;
                Ok(entry.map(|entry| entry.with_client(&self.client)))
            }
        }
    }
}

async fn leave(entry: QueueEntry) {
    if let Err(error) = entry.leave().await {
        tracing::debug!(%error, "lock queue not left yet, retrying in the background");
    }
}

enum Rebind {
    Bound,
    /// The key was changed between the read and the write.
    Changed,
    /// There is no key with the create revision of the ownership.
    Gone,
}

/// Binds the key to the lease of `ownership`. The mod revision is compared, so that a request without a response that
/// arrives later does not overwrite a newer value.
async fn rebind_once(
    ownership: &Ownership,
    value: &Bytes,
    unknown_outcome: &mut UnknownOutcome,
) -> Result<Rebind> {
    let Ownership { client, key, .. } = ownership;
    let found = client.get(key.clone()).await?;
    let Some(found) = found
        .first()
        .filter(|kv| kv.create_revision == ownership.token)
    else {
        return Ok(Rebind::Gone);
    };
    unknown_outcome.sent = true;
    let rebind = client
        .txn()
        .when([Compare::mod_revision(key.clone()).eq(found.mod_revision)])
        .then([put(key.clone(), value.clone()).lease(ownership.lease())])
        .await?;
    Ok(if rebind.succeeded {
        Rebind::Bound
    } else {
        Rebind::Changed
    })
}

/// If dropped after a request was sent, and not resolved: deletes the key when it is bound to the session's lease and
/// no task of the session uses it.
struct UnknownOutcome {
    ownership: Ownership,
    local_mutex: LocalMutex,
    sent: bool,
}

impl UnknownOutcome {
    fn new(ownership: &Ownership, local_mutex: LocalMutex) -> Self {
        Self {
            ownership: ownership.clone(),
            local_mutex,
            sent: false,
        }
    }

    fn resolve(mut self) {
        self.sent = false;
    }
}

impl Drop for UnknownOutcome {
    fn drop(&mut self) {
        if self.sent {
            delete_when_late(&self.ownership, &self.local_mutex);
        }
    }
}

fn entry_key(prefix: &Bytes, lease: i64) -> Bytes {
    // As Go formats signed numbers.
    let sign = if lease < 0 { "-" } else { "" };
    let lease = format!("{sign}{:x}", lease.unsigned_abs());
    [prefix, lease.as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_key_matches_go_client() {
        let prefix = queue_prefix(&Bytes::from_static(b"jobs/cleaner"));
        assert_eq!(entry_key(&prefix, 0x0070_ffab), "jobs/cleaner/70ffab");
        assert_eq!(entry_key(&prefix, -0x0070_ffab), "jobs/cleaner/-70ffab");
    }
}
