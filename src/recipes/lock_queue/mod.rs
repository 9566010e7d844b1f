//! The queue in etcd behind locks, elections, semaphores and double barriers: keys under a common prefix, ordered by
//! their create revisions.
//!
//! A [`QueueRule`] decides which older keys block an entry. For a mutex and an election, a key is
//! `<name>/<lease in hex>`, as in the Go client's `concurrency` package; the key with the lowest create revision owns
//! the lock, and each other session waits until the key before its own is deleted. The create revision is the fencing
//! token.
//!
//! A request to join goes through these steps:
//! 1. The task locks a local mutex of the session: the one of the prefix if the session has one key per queue, else that
//!    of a claim that is not in use.
//! 2. `create_entry` creates the key, on a task that outlives a caller that gives up.
//! 3. [`QueueEntry::wait_until_admitted`] waits until no older key blocks the entry and the lease is certain. It fails if
//!    an older key is not a contender's (`contenders`). A double barrier waits in its own way, see [`EntryWait`].
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
mod guard_types;
mod late_key_cleanup;
mod ownership;
mod queue_builder;
mod queue_entry;
mod queue_rule;
mod remove_entry;
mod scope;

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

pub use claim_handle::ClaimHandle;
pub(super) use claim_handle::{ClaimEvent, ClaimGuard, claim};
use contenders::check_contenders;
pub(super) use contenders::{check_prefix, queue_prefix};
use create_entry::{CreateEntry, JoinMode};
pub(super) use guard_types::guard_types;
use late_key_cleanup::delete_when_late;
pub use ownership::Ownership;
pub(super) use queue_builder::QueueBuilder;
pub(super) use queue_entry::{EntryWait, QueueEntry, UntilAdmitted};
pub(super) use queue_rule::{QueueKeys, QueueRule, is_contender};
pub(super) use remove_entry::remove;
pub(super) use scope::{acquired_within, run_under};

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
    pub(super) keys: QueueKeys,
}

impl LockQueue {
    pub(super) fn new(session: &Session, name: &Bytes, rule: QueueRule) -> Self {
        Self {
            client: session.client().clone(),
            session: session.state().clone(),
            heals: session.heals(),
            owned_session: None,
            keys: QueueKeys::new(name, rule),
        }
    }

    /// Returns the queue with the same name and session, for entries with another rule.
    pub(super) fn with_rule(&self, rule: QueueRule) -> Self {
        let mut queue = self.clone();
        queue.keys.rule = rule;
        queue
    }

    /// Returns the queue for background work, which does not keep the client running.
    pub(super) fn for_background(self) -> Self {
        Self {
            client: self.client.for_background(),
            ..self
        }
    }

    /// Returns the mutex of the session's only key.
    fn local_mutex(&self) -> LocalMutex {
        self.session.local_mutexes.get(&self.keys.prefix)
    }

    /// Reserves a key of the session. Waits for another task of the session that uses its only key.
    async fn reserve_key(&self, lease: &SessionLease) -> Result<ReservedKey> {
        if self.keys.rule.has_claims() {
            return Ok(self.reserve_claim(lease));
        }
        let guard = tokio::select! {
            biased;
            loss = lease.ended_or_client_stops() => return Err(loss.into()),
            guard = self.local_mutex().lock_owned() => guard,
        };
        Ok(self.reserved(lease, 0, guard))
    }

    /// Reserves a key of the session, or returns `None` if another task of the session uses its only key.
    fn try_reserve_key(&self, lease: &SessionLease) -> Option<ReservedKey> {
        if self.keys.rule.has_claims() {
            return Some(self.reserve_claim(lease));
        }
        let guard = self.local_mutex().try_lock_owned().ok()?;
        Some(self.reserved(lease, 0, guard))
    }

    fn reserve_claim(&self, lease: &SessionLease) -> ReservedKey {
        let (claim, guard) = self.session.local_mutexes.lock_claim(&self.keys.own());
        self.reserved(lease, claim, guard)
    }

    fn reserved(&self, lease: &SessionLease, claim: usize, guard: LocalMutexGuard) -> ReservedKey {
        let key = self.keys.entry(lease.id(), claim);
        ReservedKey { key, guard }
    }

    /// Returns the session's lease. Waits for a new one while the session heals.
    async fn lease(&self) -> Result<SessionLease> {
        self.keys.check()?;
        if self.heals {
            Ok(SessionLease::healed(&self.session).await?)
        } else {
            Ok(SessionLease::current(&self.session)?)
        }
    }

    /// Joins the queue and waits until the entry is admitted.
    pub(super) async fn acquire(&self, value: Bytes) -> Result<QueueEntry> {
        let (_not_cancelled, mut cancel) = oneshot::channel();
        let entry = self.join_and_wait(value, &mut cancel).await?;
        entry.ok_or_else(|| OwnershipLost::Taken.into())
    }

    /// As [`join_and`](Self::join_and), and waits until the entry is admitted.
    pub(super) async fn join_and_wait(
        &self,
        value: Bytes,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<QueueEntry>> {
        let joined = self.join_and(&UntilAdmitted, value, cancel).await?;
        Ok(joined.map(|(entry, ())| entry))
    }

    /// Joins the queue and waits. On `cancel`, leaves the queue and returns `None`; in an outage, leaving continues in
    /// the background.
    ///
    /// If the session heals, the loss of its lease does not end the wait: the queue is joined again at its end.
    pub(super) async fn join_and<W: EntryWait>(
        &self,
        wait: &W,
        value: Bytes,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<(QueueEntry, W::Output)>> {
        loop {
            let lease = tokio::select! {
                biased;
                _ = &mut *cancel => return Ok(None),
                lease = self.lease() => lease?,
            };
            let waited = self.join_once(lease.clone(), wait, value.clone(), cancel);
            let waited = waited.await;
            match waited {
                Err(error)
                    if self.heals
                        && error.kind() == ErrorKind::SessionLost
                        && !self.client.holders().is_stopping() =>
                {
                    tracing::debug!(%error, prefix = ?self.keys.prefix, "lock request lost its lease, join the queue again");
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

    async fn join_once<W: EntryWait>(
        &self,
        lease: SessionLease,
        wait: &W,
        value: Bytes,
        cancel: &mut oneshot::Receiver<()>,
    ) -> Result<Option<(QueueEntry, W::Output)>> {
        let key = tokio::select! {
            biased;
            _ = &mut *cancel => return Ok(None),
            key = self.reserve_key(&lease) => key?,
        };
        let mut creating = pin!(self.create(lease, key, value, JoinMode::AtEnd));
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
        let waited = tokio::select! {
            biased;
            _ = cancel => Ok(None),
            waited = wait.wait(&entry) => waited.map(Some),
        };
        match waited {
            Ok(Some(output)) => Ok(Some((entry, output))),
            Ok(None) => {
                leave(entry).await;
                Ok(None)
            }
            // Other errors mean that the key is gone, or that requests fail: dropping the entry deletes it.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::LockBlocked | ErrorKind::BarrierFull
                ) =>
            {
                leave(entry).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`join_if_admitted`](Self::join_if_admitted), and waits until the lease is certain.
    pub(super) async fn try_acquire(&self, value: Bytes) -> Result<Option<QueueEntry>> {
        let Some(entry) = self.join_if_admitted(value).await? else {
            return Ok(None);
        };
        entry.ownership.session_lease.certain().await?;
        Ok(Some(entry))
    }

    /// Creates a key of the session if it is admitted at once. Returns `None` and leaves no key behind otherwise.
    async fn join_if_admitted(&self, value: Bytes) -> Result<Option<QueueEntry>> {
        let lease = self.lease().await?;
        loop {
            let Some(mode) = self.mode_if_free().await? else {
                return Ok(None);
            };
            let Some(key) = self.try_reserve_key(&lease) else {
                return Ok(None);
            };
            let created = self.create(lease.clone(), key, value.clone(), mode);
            match created.await? {
                // Created by an earlier request without a response, possibly behind other keys.
                Some(entry) if entry.adopted && !entry.is_admitted().await? => {
                    entry.leave().await?;
                    return Ok(None);
                }
                // Another contender has joined since the keys were counted.
                None if mode != JoinMode::IfUnblocked => {}
                entry => return Ok(entry),
            }
        }
    }

    /// Returns on which condition a new key is admitted at once, or `None` if it is not.
    ///
    /// A transaction cannot count keys. They are counted before it, and it fails if another one was added since.
    async fn mode_if_free(&self) -> Result<Option<JoinMode>> {
        let blocking_count = self.keys.rule.blocking_count();
        if blocking_count == 1 {
            return Ok(Some(JoinMode::IfUnblocked));
        }
        let keys = self.client.get(self.keys.blocking()).prefix();
        let limit = i64::try_from(blocking_count).unwrap_or(i64::MAX);
        let found = keys.limit(limit).await?;
        if found.kvs.len() >= blocking_count {
            check_contenders(&self.keys, &found.kvs)?;
            return Ok(None);
        }
        Ok(Some(JoinMode::IfNoneSince(found.header.revision)))
    }

    /// Binds an existing key with this create revision to the session's lease. Returns `None` if there is no such key.
    pub(super) async fn take_over(
        &self,
        key: Bytes,
        token: i64,
        value: Bytes,
    ) -> Result<Option<QueueEntry>> {
        let lease = self.lease().await?;
        let guard = self.reserve_key(&lease).await?.guard;
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
            keys: self.keys.clone(),
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
        reserved: ReservedKey,
        value: Bytes,
        mode: JoinMode,
    ) -> Result<Option<QueueEntry>> {
        let ReservedKey { key, guard } = reserved;
        let task = CreateEntry {
            ownership: self.ownership(lease.clone(), key, 0).for_background(),
            keys: self.keys.clone(),
            owned_session: self.owned_session.clone(),
            local_mutex: LocalMutexGuard::mutex(&guard).clone(),
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

/// A key that no other task of the session uses.
struct ReservedKey {
    key: Bytes,
    guard: LocalMutexGuard,
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
