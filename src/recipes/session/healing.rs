//! Follows the lease of a session, replaces it when it is lost, and puts the keys again.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_stream::StreamExt;

use super::{
    SessionBuilder, SessionEvent, SessionState, key_restoration::KeyRestoration,
    session_state::UnrestoredKey,
};
use crate::{
    call::deadline_in,
    error::{Error, ErrorKind, Outcome, Result},
    lease::{Lease, LeaseEvent, LeaseEvents, LeaseLost},
    runtime::backoff::Backoff,
};

/// Delays between attempts to heal: from 50–100 ms up to 1–2 s.
const HEAL_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(75), Duration::from_millis(1500)).jitter(1.0 / 3.0);
/// Delays between attempts to put the keys that a healed session could not put: from 0.3–0.7 s up to 20–40 s.
const RESTORE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(30)).jitter(1.0 / 3.0);

pub(super) struct Healer {
    pub(super) builder: SessionBuilder,
    pub(super) state: Arc<SessionState>,
}

impl Healer {
    /// Follows the lease and its replacements. Returns when the session is lost for good or its lease was released.
    pub(super) async fn follow_lease(&self) {
        // A lost lease reports its loss to every new reader, so a restarted actor does not miss it.
        let events = self.state.lock().lease.as_ref().map(Lease::events);
        let Some(mut events) = events else { return };
        loop {
            let loss = tokio::select! {
                biased;
                loss = self.wait_for_loss(&mut events) => loss,
                never = self.retry_unrestored_keys() => match never {},
            };
            let Some(reason) = loss else { return };
            self.state.lease_status.set_lost(reason);
            if is_final(reason) || !self.builder.heal {
                return self.state.end(reason);
            }
            self.state.publish(SessionEvent::Healing(reason));
            match self.heal().await {
                Ok(Some(new_events)) => events = new_events,
                Ok(None) => return,
                Err(_) => return self.state.end(LeaseLost::Shutdown),
            }
        }
    }

    /// Waits until the lease is lost. Returns `None` if it was released instead.
    async fn wait_for_loss(&self, events: &mut LeaseEvents) -> Option<LeaseLost> {
        loop {
            match events.next().await? {
                LeaseEvent::Lost(reason) => return Some(reason),
                LeaseEvent::AtRisk { deadline } => {
                    self.state.lease_status.set_at_risk();
                    self.state.publish(SessionEvent::AtRisk { deadline });
                }
                LeaseEvent::Recovered { deadline } => {
                    self.state.lease_status.set_certain();
                    self.state.publish(SessionEvent::Recovered { deadline });
                }
                LeaseEvent::Renewed { .. } => self.state.lease_status.set_certain(),
            }
        }
    }

    /// Retries until there is a new lease. Returns its events, or `None` if the handle was dropped. Fails when the client
    /// is shut down.
    async fn heal(&self) -> Result<Option<LeaseEvents>> {
        let _key_writes = self.state.key_writes.lock().await;
        let mut backoff = HEAL_BACKOFF.start();
        loop {
            match self.heal_once().await {
                Err(error) if error.kind() != ErrorKind::Shutdown => {
                    tracing::warn!(%error, "session not healed yet");
                    tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
                }
                healed => return healed,
            }
        }
    }

    /// Grants a lease and puts the keys. Keys that cannot be put do not prevent the session from using the new lease.
    async fn heal_once(&self) -> Result<Option<LeaseEvents>> {
        let lease = self.grant().await?;
        let events = lease.events();
        let id = lease.id();
        {
            let mut state = self.state.lock();
            state.leases.push(id);
            state.set_all_unrestored();
        }
        self.restore_keys().await?;
        if !self.state.replace_lease(lease) {
            return Ok(None);
        }
        let (taken, unrestored) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.taken), state.unrestored_keys())
        };
        self.state
            .publish(SessionEvent::Healed { lease: id, taken });
        if !unrestored.is_empty() {
            tracing::warn!(keys = ?unrestored, "session healed without some of its keys");
            self.state
                .publish(SessionEvent::KeysNotRestored(unrestored));
        }
        Ok(Some(events))
    }

    /// Puts the keys that are not restored yet. Temporary failures are retried for the client's `request_timeout`. Fails
    /// if the lease is lost again.
    async fn restore_keys(&self) -> Result<()> {
        let deadline = deadline_in(self.builder.client.request_timeout());
        let mut backoff = HEAL_BACKOFF.start();
        loop {
            let may_pass = self.try_restore_keys().await?;
            if !may_pass || Instant::now() >= deadline {
                return Ok(());
            }
            tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
        }
    }

    /// Makes one attempt to put the keys that are not restored yet. Returns whether one of them failed for a reason that
    /// may pass by itself.
    async fn try_restore_keys(&self) -> Result<bool> {
        let (keys, leases) = {
            let state = self.state.lock();
            (state.keys_to_restore(), state.leases.clone())
        };
        let client = &self.builder.client;
        let outcomes = KeyRestoration { client, leases }.run(keys).await?;
        Ok(self.state.lock().apply_restoration(outcomes))
    }

    /// Retries the keys that the healed session could not put, and reports those that are restored or taken.
    async fn retry_unrestored_keys(&self) -> std::convert::Infallible {
        let mut backoff = RESTORE_BACKOFF.start();
        // Only healing adds such keys, and it ends this future.
        while !self.state.lock().unrestored.is_empty() {
            tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
            let _key_writes = self.state.key_writes.lock().await;
            let before = self.state.lock().unrestored_keys();
            if before.is_empty() || self.try_restore_keys().await.is_err() {
                // The keys are not needed any more, or the lease is lost and healing follows.
                break;
            }
            self.report_restored_keys(&before);
        }
        std::future::pending().await
    }

    fn report_restored_keys(&self, before: &[UnrestoredKey]) {
        let (taken, after) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.taken), state.unrestored_keys())
        };
        let is_restored = |key: &UnrestoredKey| {
            !taken.contains(&key.key) && !after.iter().any(|unrestored| unrestored.key == key.key)
        };
        let restored = before.iter().filter(|key| is_restored(key));
        let keys: Vec<_> = restored.map(|key| key.key.clone()).collect();
        if !keys.is_empty() || !taken.is_empty() {
            self.state
                .publish(SessionEvent::KeysRestored { keys, taken });
        }
        // A new reason is reported, a known one is not repeated.
        let changed = after.into_iter().filter(|key| !before.contains(key));
        let changed: Vec<_> = changed.collect();
        if !changed.is_empty() {
            self.state.publish(SessionEvent::KeysNotRestored(changed));
        }
    }

    /// Grants a new lease in a separate task. If this future is dropped, because the session was dropped or the actor
    /// panicked, the task still gets the lease, and dropping it revokes it.
    async fn grant(&self) -> Result<Lease> {
        let grant = actix_rt::spawn(self.builder.grant().into_future());
        grant.await.unwrap_or_else(|panicked| {
            let reason = "the task that grants a new lease was interrupted";
            Err(Error::new(ErrorKind::Other, Outcome::Unknown, reason).with_source(panicked))
        })
    }
}

/// Returns whether a session cannot heal after this loss.
fn is_final(reason: LeaseLost) -> bool {
    matches!(
        reason,
        LeaseLost::Shutdown | LeaseLost::PermissionDenied | LeaseLost::TakenOver
    )
}
